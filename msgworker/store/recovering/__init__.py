"""Leases, and the messages of instances without one.

In order: lease, recover.
"""
