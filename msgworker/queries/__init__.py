"""What operators read, bounded: nothing here writes.

counts     messages in each state, everything at a glance, sizes, the history
messages   one message, or a list
pages      lists that people leaf through
lanes      objects that wait
jobs       jobs, and how far each is
explain    why a message does not run: the facts, the decision, the sentence; or how it ended
remaining  what a drain has left
failures   failed messages by error
instances  instances, their messages and slices; limits of topics
"""
