"""The only package that knows the names of databases.

All other packages use the capabilities of a `Database`, clock expressions (`now`, `now_plus`),
column types and error kinds (`Trouble`), each from the module that has it.
A new database is a module with a `Database`, and a row in HOMES.

Which `Database` it is: `of` a connection or an engine, `of_dialect` where SQLAlchemy gives only
that; both know a MariaDB once it is connected. `database_of` an engine asks the server what else
differs between those of a kind: for what is kept, as in `Tables`. `DATABASES` has them by the name
in a URL, where there is no connection.
"""
