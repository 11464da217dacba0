"""The id and the lease of this instance, and the recovery of others.

In order: identity, heartbeat, ownlease, requests, regulations, recovery, chronicle, ruling,
watchdog.
"""
