"""The threads of one running instance, one subject per file: no SQL, nothing of other instances.

In the order of a message's life, then the instance as a whole:

claiming    the claim loop: how many lanes are free, where to look, what to flag, when to poll again
running     lanes wait for threads, threads call handlers, handlers end in an outcome
fan_out     the items of one message over threads or an executor, and their records
settling    outcomes are written in batches, until it is known what was written
liveness    the id and the lease of this instance, and the recovery of others
worker      start, run, drain and stop an instance; the report of a drain
counting    the messages left when a drain has ended, and how long their count may take
instance    builds the roles; the order of start and stop
role        the loop of a thread, and its outages
state       what an instance is given, what its roles share
connections  the connections of roles and of handlers; calls of user code, its errors, its forks
stop        whether, why and until when; signals
observers   subscribers of the events: counts, minutes of the history, log lines
"""
