"""What operators read, bounded: nothing here writes.

In order: find, info, capped, pages, counts, overview, waiting, place, failures, explain, ending,
limited, instances, audited, left, order, window, charts, sizes, doctor.
"""
