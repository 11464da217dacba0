"""All statements of the library, one file per action.

Functions take a Connection first and run in the caller's transaction, unless stated otherwise. In
the order of a message's life:

tables      create and check the tables; the rule that is recorded with them
send        insert messages
unique      insert messages that have a unique key, or find who holds it
schedules   what schedules there are, and the messages of their ticks
claiming    find heads, flag them, read the runs behind them
settling    write outcomes and tries, move the flag
items       the items of a fan-out
recovering  leases, and the messages of instances without one
sharing     locks, shards and flags by which instances share a table
looking     what operators read, bounded: nothing here writes
history     what instances did in each minute
changing    what operators change, and the audit of it
rows        rows of messages, as the others read them
"""
