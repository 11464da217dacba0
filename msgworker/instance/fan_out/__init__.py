"""The items of one message over threads or an executor, and their records.

In order: fanout, fanned, itemrun, itemkeys, hands, inside, recorder, fence.
"""
