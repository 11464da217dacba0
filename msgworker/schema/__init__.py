"""Create, check and upgrade the tables; the rule that is recorded with them.

create       create the tables
difference   what a table lacks
additions    one table, column or index; the script of all
upgrade      the tables of an earlier version
describe     the live table
versions     the version of the schema, as recorded
requirements  what a table must be like
trial        a message's life, tried and rolled back
known        the tables of an App as it last read them
rule         max_tries and on_dead, as recorded
"""
