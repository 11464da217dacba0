"""The live schema, rows and server against what is needed, and the SQL that mends each.

Nothing is changed: rights are tried with statements that match no row and are rolled back. The
statements of all findings, run in the order given, leave nothing that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from msgworker import dialects
from msgworker.dialects import connecting
from msgworker.schedules import Schedule
from msgworker.store.looking.doctor import (
    columns,
    held,
    indexes,
    plan,
    rights,
    rows,
    ruling,
    schedules,
    scopes,
    server,
)
from msgworker.store.looking.doctor.finding import Finding, Severity
from msgworker.store.looking.doctor.patient import meet
from msgworker.store.tables.rule import Rule
from msgworker.table import MessageTable

__all__ = ["Finding", "Severity", "examine"]

CHECKS = (
    columns.tables,
    columns.storage,
    columns.missing,
    columns.requirements,
    columns.key,
    columns.unfilled,
    rows.odd,
    rows.refused,
    rows.fractions,
    rows.numbers,
    held.held,
    indexes.columns,
    indexes.not_stored,
    indexes.other_collation,
    indexes.missing,
    indexes.guard,
    ruling.rule,
    ruling.left_over,
    scopes.unseen,
    schedules.schedules,
    rights.rights,
    server.settings,
    server.isolation,
    server.clock,
    plan.plan,
)


def examine(
    engine: sa.Engine,
    spec: MessageTable,
    *,
    names_rule: bool = True,
    declared: Sequence[Schedule] | None = None,
) -> list[Finding]:
    """All findings, in the order in which to fix them. Never []: findings also say what is
    fine.

    names_rule: whether max_tries and on_dead of `spec` were given explicitly. declared: the
    schedules of the App; None if it says nothing of that.
    Raises DatabaseUnavailable if there is nothing to look at.
    """
    with dialects.reaching(engine):
        dialect = dialects.dialect_of(engine)
        with connecting(engine) as conn:
            patient = meet(engine, conn, spec, dialect, Rule.of(spec) if names_rule else None)
            patient = replace(patient, declared=declared)
            found: list[Finding] = []
            for check in CHECKS:
                found += check(patient)
                if not patient.exists:
                    break
    return found
