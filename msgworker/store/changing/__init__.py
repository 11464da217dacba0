"""What operators change, and the audit of it.

In order: change, cancelling, purge, pause, audit.
"""
