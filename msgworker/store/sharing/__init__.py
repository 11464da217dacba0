"""Locks, shards and flags by which instances share a table.

In order: scopes, deal, locks.
"""
