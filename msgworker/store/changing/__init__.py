"""What operators change, and the audit of it.

In order: change, chunks, keys, cancelling, purge, pause, audit.
"""
