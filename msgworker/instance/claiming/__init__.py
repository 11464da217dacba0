"""The claim loop: how much room there is, where to look, what to flag, when to look again.

In order: loop, drain, capacity, finder, search, choice, slices, scope, claimer.
"""
