"""What operators change, and the audit of it.

In order: change, keys, cancelling, purge, pause, audit.
"""
