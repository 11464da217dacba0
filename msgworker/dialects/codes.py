"""The code of a driver's exception, wherever the driver keeps it."""

from __future__ import annotations


def code_of(error: BaseException | None) -> tuple[int | None, str | None]:
    """Number and SQLSTATE, each None if the error has none. The number is that of MySQL and
    MariaDB, whose states are less precise; Oracle's stands in the text.

    PyMySQL and mysqlclient have the number first in `args`, MariaDB Connector/Python as `errno`;
    psycopg 3 has the state as `sqlstate`, psycopg2 as `pgcode`.
    """
    first = error.args[0] if error is not None and error.args else None
    number = first if isinstance(first, int) else getattr(error, "errno", None)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return (
        number if isinstance(number, int) else None,
        state if isinstance(state, str) else None,
    )
