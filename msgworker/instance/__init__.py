"""The threads of one running instance, one subject per file: no SQL, nothing of other instances.

In the order of a message's life, then the instance as a whole:

claiming    the claim loop: how much room there is, where to look, what to flag, when to look again
running     lanes wait for threads, threads call handlers, handlers end in an outcome
fan_out     the items of one message over threads or an executor, and their records
settling    outcomes are written in batches, until it is known what was written
liveness    the id and the lease of this instance, and the recovery of others
worker      start, run, drain and stop an instance
working     what a worker shares with those of several databases
instance    builds the roles; the order of start and stop
runtime     what the roles share
role        the loop of a thread, and its outages
links       connections
timer       sends the messages of schedules at their ticks
listener    wakes the claim loop when a message was sent
usercode    calls what is the user's: its context, its errors, its forks
stopping    signals, and who asked for a stop
spans       how long handlers ran and messages waited
minutes     counts by minute and topic, from the events
storms      sums up equal log lines
telling     what of the events goes to the log
report      what a drain returns
"""
