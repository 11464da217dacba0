"""The schema of a real Oracle's login, which belongs to the tests alone: they empty it each time.

Whether it does is told by a table of ours. Where that is missing, only an empty schema is taken.
"""

from __future__ import annotations

import sqlalchemy as sa

MARK = "mw_tests_own_this_schema"


class NotOurs(Exception):
    """The schema has tables that the tests have not made."""


def emptied(url: str | sa.URL) -> None:
    """Drop all tables, views, sequences and triggers of the login's schema; raises NotOurs."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as conn:
        inspector = sa.inspect(conn)
        tables, views = inspector.get_table_names(), inspector.get_view_names()
        if MARK not in tables:
            if tables or views:
                some = ", ".join([*tables, *views][:5])
                raise NotOurs(
                    f"the schema of this login is not empty ({some}), and the tests drop all that "
                    "is in it: give them a login of their own"
                )
            conn.exec_driver_sql(f"CREATE TABLE {MARK} (nothing INTEGER)")
        quote = conn.dialect.identifier_preparer.quote
        for view in views:
            conn.exec_driver_sql(f"DROP VIEW {quote(view)}")
        for table in tables:
            if table != MARK:
                conn.exec_driver_sql(f"DROP TABLE {quote(table)} CASCADE CONSTRAINTS PURGE")
        for sequence in inspector.get_sequence_names():
            if "$$" not in sequence:
                conn.exec_driver_sql(f"DROP SEQUENCE {quote(sequence)}")
    engine.dispose()
