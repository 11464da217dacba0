"""What operators read, bounded: nothing here writes.

In order: find, info, counts, waiting, failures, explain, ending, limited, instances, left, order,
window, doctor.
"""
