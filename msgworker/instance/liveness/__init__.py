"""The id and the lease of this instance, and the recovery of others.

In order: identity, lease, housekeeper, requests, recovery, schedules, watchdog.
"""
