"""What operators change, and the audit of it.

In order: change, purge, pause, audit.
"""
