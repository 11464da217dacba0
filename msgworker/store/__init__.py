"""Every statement the library runs, one file per act.

Functions take a Connection first and run in the caller's transaction, if not said otherwise.
"""
