"""The claim loop: when to look, how much to claim, where, which rows are read, which of them are
heads, their flags, and whether all is done.

In order: loop, capacity, finder, search, passes, heads, claimer.
"""
