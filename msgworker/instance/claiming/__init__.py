"""The claim loop: how many lanes to claim, where to look, what to flag, when to look again.

In order: loop, drain, capacity, finder, search, choice, claimer.
"""
