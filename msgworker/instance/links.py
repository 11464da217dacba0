"""The connections of one role.

A role keeps its connections; after any error they are given up and opened again at the next use, so
nobody goes on with a broken one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine


class Link:
    """`statement()`: each statement stands alone. `transaction()`: commits at the end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._alone: Connection | None = None
        self._together: Connection | None = None

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """A connection on which every statement commits by itself."""
        if self._alone is None:
            conn = self._engine.connect()
            self._alone = conn.execution_options(isolation_level="AUTOCOMMIT")
        try:
            yield self._alone
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction of its own."""
        if self._together is None:
            self._together = self._engine.connect()
        try:
            with self._together.begin():
                yield self._together
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the connections back."""
        for conn in (self._alone, self._together):
            if conn is not None:
                with suppress(Exception):  # it may be broken: that is why we are here
                    conn.close()
        self._alone = self._together = None
