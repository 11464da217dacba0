"""Create, check and upgrade the tables; what is recorded with them.

describe      the live tables
difference    what they lack, and what of them is otherwise than it should be
repairs       the statements that mend a message table, and what they would do to its rows
requirements  what else the message table must be like; a message's life, tried and rolled back
rule          what is recorded: max_tries and on_dead, and the version of the schema
apply         create the tables, upgrade those of an earlier version; the script of all
known         the tables of an App as it last read them; what a start refuses
"""
