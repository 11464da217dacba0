"""Find heads, flag them, read the runs behind them.

In order: candidates, urgent, due, slices, slices_by_age, limits, claim, following.
"""
