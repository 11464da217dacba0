"""The live schema, rows and server against what is needed, and the SQL that fixes each.

Nothing is changed: rights are tried with statements that match no row, and a message is sent,
claimed, settled and purged, all of which is rolled back. The statements of all findings, run in the
order given, leave nothing that is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker.db.connections import connecting, deadline, reaching
from msgworker.db.database import Trouble, database_of
from msgworker.db.errors import is_overtime, raise_lost, trouble
from msgworker.doctor import rows, server, structure
from msgworker.doctor.structure import Finding, Severity, advised, needed, subject_of
from msgworker.errors import TookTooLong
from msgworker.schedules import Schedule
from msgworker.schema.rule import Rule
from msgworker.table.spec import MessageTable

__all__ = ["Finding", "Severity", "examine"]

CHECKS = (
    *(structure.tables, structure.storage, structure.missing_columns, structure.requirements),
    *(structure.key, structure.unfilled, structure.tried),
    *(rows.odd, rows.keys, rows.refused, rows.fractions, rows.numbers, rows.held),
    *(structure.partitions, structure.columns, structure.not_stored, structure.other_collation),
    *(structure.indexes, structure.version),
    *(rows.rule, rows.legacy, rows.left_over, rows.whole_guard, rows.unseen, rows.schedules),
    *(server.rights, server.settings, server.isolation, server.pooler, server.succession),
    *(server.cluster, server.snapshots, server.clock, server.local_times, server.plan),
)
UNSAID = (
    *(rows.refused, rows.held, rows.legacy, rows.unseen, rows.schedules),
    *(server.isolation, server.snapshots, server.plan),
)
"""Checks that find nothing where the database refuses what they ask: this login may not read it, or
something is missing, which other checks say."""


def examine(
    engine: sa.Engine,
    spec: MessageTable,
    *,
    names_rule: bool = True,
    declared: Sequence[Schedule] | None = None,
    wants: Mapping[str, str] | None = None,
    traced: bool = False,
    seconds: float | None = None,
) -> list[Finding]:
    """All findings, in the order in which to fix them. Never []: findings also say what is
    fine.

    names_rule: whether max_tries and on_dead of `spec` were given explicitly. declared: the
    schedules of the App; None if it says nothing of that. wants: rights on the messages that its
    handlers and schedules need, and for what. traced: the App writes headers. seconds: it takes no
    longer; the checks that are not over by then are named in a finding. None = no limit.
    Raises DatabaseUnavailable if there is nothing to look at, TookTooLong if there was not even the
    time to read what the table is.
    """
    with reaching(engine):
        database = database_of(engine)
        with connecting(engine) as conn:
            clock = _Clock(conn, seconds)
            with clock.running():
                subject = subject_of(
                    engine, conn, spec, database, Rule.of(spec) if names_rule else None
                )
            if subject.lacks_where:  # what follows would take rows of others for messages
                text = f"table {subject.spec.name} is not examined: {subject.lacks_where}"
                return [needed("tables", text)]
            subject = replace(subject, declared=declared, wants=wants or {}, traced=traced)
            subject = replace(subject, limit=clock.each)
            found: list[Finding] = []
            late: list[str] = []
            refused: DBAPIError | None = None  # which a check of rights explains
            for check in CHECKS if subject.exists else CHECKS[:1]:
                try:
                    with clock.running():
                        found += check(subject)
                except TookTooLong:
                    late.append(check.__name__.replace("_", " "))
                except DBAPIError as error:
                    raise_lost(error)
                    if check in UNSAID:
                        continue
                    if trouble(error) is not Trouble.REFUSED:
                        raise
                    refused = refused or error
            if refused is not None and not any(one.severity is Severity.NEEDED for one in found):
                raise refused
    if late:
        text = f"not examined within {seconds:g} s: {', '.join(dict.fromkeys(late))}"
        found.append(advised("time", f"{text}; `msgworker doctor` takes the time it needs"))
    return found


class _Clock:
    """Keeps the checks within their time: no statement begins after 3/4 of it, and none takes
    longer than a quarter of it (`each`, seconds)."""

    def __init__(self, conn: sa.Connection, seconds: float | None) -> None:
        self.each = None if seconds is None else seconds / 4
        self._conn = conn
        self._seconds = seconds or 0.0
        self._until = math.inf if seconds is None else time.monotonic() + seconds * 3 / 4

    @contextmanager
    def running(self) -> Iterator[None]:
        """One check. Raises TookTooLong where its time was over."""
        self._begins()
        try:
            with deadline(self._conn, self.each):
                sa.event.listen(self._conn, "before_cursor_execute", self._begins)
                try:
                    yield
                finally:
                    sa.event.remove(self._conn, "before_cursor_execute", self._begins)
        except DBAPIError as error:
            if self.each is not None and is_overtime(error):
                raise TookTooLong(self._seconds) from error
            raise

    def _begins(self, *_: Any) -> None:
        if time.monotonic() > self._until:
            raise TookTooLong(self._seconds)
