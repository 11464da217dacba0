"""Find heads, flag them, read the runs behind them.

In order: candidates, due, slices, slices_by_age, claim, following.
"""
