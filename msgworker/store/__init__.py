"""All statements that move a message, one subject per file.

Functions take a Connection first and run in the caller's transaction, unless stated otherwise. In
the order of a message's life:

send        insert messages, with a unique key if they have one
schedules   what schedules there are, and the messages of their ticks
candidates  the oldest heads, as hints
ranked      heads with a priority, and those whose instant has come
slices      heads in a slice of the table, by object or by age
limits      flag messages of a limited topic
claim       flag candidates, read the runs behind them
done        the settle of messages that are done
settle      write outcomes, move the flag
tries       the record of failed tries
items       the items of a fan-out
jobs        messages that belong together, and what is sent when all have ended
lease       the leases of instances
recover     messages of instances without a lease
locks       locks with tokens, and the dealing of messages to instance types
controls    topics and jobs that are paused, requests to cancel running messages
change      rerun, discard, acknowledge, cancel and edit; the messages behind a message
purge       delete finished messages
audit       what operators did
history     what instances did in each minute
bounded     which messages operators look at or choose, and bounded walks to them
rows        rows of messages, as the others read them, and those that run
"""
