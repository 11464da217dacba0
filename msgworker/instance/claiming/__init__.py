"""The claim loop: how much room there is, where to look, what to flag, when to look again.

In order: fetcher, room, appetite, emptying, quiesce, finder, rivals, ahead, search, ring, barren,
pick, urgency, slicing, slicing_by_age, seat, unhandled, refusals, permits, claimer, runlength,
pollpace, draining, drainend.
"""
