"""The message table: columns by role, the predicates of the protocol, and the indexes.

A user writes a `MessageTable`: names and rules. The statements are built from `Tables`: the same
for one database, with the columns that exist.

columns     what each column holds, its type, and what is lost without it
spec        MessageTable: names, rules, and which rows are messages
tables      Tables: the predicates of the protocol
indexes     the guard and the claim indexes: a class of Tables for each kind of database
build       our own tables; Tables of the columns of a database; the versions of the schema
"""
