"""What operators read, bounded: nothing here writes.

In order: find, info, capped, pages, counts, overview, waiting, place, failures, explain, ending,
limited, instances, left, order, window, charts, doctor.
"""
