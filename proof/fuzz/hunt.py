"""Many examples under one seed: the same seed writes the same rows and tables again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from proof.fuzz.kinds import TYPES_MADE
from proof.fuzz.rows import Harm, Odd, Trial, odd_rows
from proof.fuzz.tables import Adoption, Described, Stuck, described
from tests.engines import plain_engine

RULES = ("continue", "block")
Tell = Callable[[str], object]


@dataclass
class Found:
    """What came of all examples; faults: of the first few, with what repeats them."""

    figures: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{count:>7,} {what}" for what, count in sorted(self.figures.items())]
        return "\n".join([*lines, *self.faults])


def _each(many: int, start: int, strategies: tuple[Any, ...], act: Callable[..., None]) -> None:
    rules = settings(
        max_examples=many,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(start)(rules(given(*strategies)(act)))()


def hunt_rows(
    url: str, database: str, *, rows: int, at_once: int, start: int, tell: Tell = lambda _: None
) -> Found:
    """At least `rows` odd rows, `at_once` of them among the good ones of one table."""
    found, number = Found(), itertools.count(1)

    def one(odds: list[Odd], rule: str) -> None:
        n = next(number)
        if n == 1 or found.figures["rows"] >= rows:  # the first rows are all the same
            return
        trial = Trial(url, database, rule)
        try:
            trial.run(odds)
        except Harm as harm:
            found.figures["tables harmed"] += 1
            found.faults.append(f"table {n}, on_dead={rule}: {harm}")
        found.figures += trial.figures
        tell(f"table {n}: {found.figures['rows']:,} rows, {len(found.faults)} harmed")

    # What a database refuses is no row of it: about one in three on the strict ones.
    _each(
        2 * rows // at_once + 2, start, (odd_rows(database, at_once), st.sampled_from(RULES)), one
    )
    return found


def hunt_tables(
    url: str, database: str, *, tables: int, start: int, tell: Tell = lambda _: None
) -> Found:
    """At least so many tables that the database makes."""
    found, number = Found(), itertools.count(1)
    engine = plain_engine(url)
    with engine.begin() as conn:
        for statement in TYPES_MADE.get(database, ()):
            conn.exec_driver_sql(statement)

    def one(table: Described) -> None:
        if found.figures["tables"] >= tables:
            return
        adoption = Adoption(engine, database, f"tb{next(number)}")
        try:
            adoption.run(table)
        except Stuck as stuck:
            found.figures["tables at fault"] += 1
            found.faults.append(str(stuck))
            tell(str(stuck))
        found.figures += adoption.figures
        tell(f"{found.figures['tables']:,} tables, {len(found.faults)} at fault")

    try:
        _each(2 * tables, start, (described(database),), one)
    finally:
        engine.dispose()
    return found
