"""The items of one message over threads or an executor, and their records.

In order: fan_out, items, executors.
"""
