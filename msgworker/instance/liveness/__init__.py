"""The id and the lease of this instance, and the recovery of others.

In order: identity, ownlease, heartbeat, housekeeper, requests, regulations, recovery, chronicle,
ruling, watchdog, lentlinks.
"""
