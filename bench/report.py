"""One table of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

HEADINGS = (
    "database",
    "scenario",
    "proc",
    "messages/s (min-max)",
    "of limit",
    "of prototype",
    "of msgworker",
    "order faults",
    "overlaps",
    "lost",
    "stmt/msg",
    "trips/msg",
    "cpu us/msg",
    "wasted",
    "without",
    "note",
)
TEXTS = (0, 1, len(HEADINGS) - 1)
OURS = "msgworker:"
"""How the label of our line begins, among those of other queues and of a release of ours."""


@dataclass(slots=True)
class Line:
    """One scenario on one database.

    rates: messages per second of each round. limit, prototype: the same for what it is compared
    with, measured beside it; ours: msgworker's rates, beside a peer's. cpus, cpus_beside: client
    CPU for each message of each round, and of what `ours` has the rates of, where both matter.
    missing: messages not handled, or handled twice. wasted: share of the candidates offered that
    were not won. without: what a peer does not do of what this row asks for, by words of
    bench/peers/peer.py. not_run: why there are no figures.
    """

    database: str
    scenario: str
    label: str
    processes: int = 1
    rates: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    prototype: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)
    cpus_beside: list[float] = field(default_factory=list)
    order_faults: int = 0
    overlaps: int = 0
    missing: int = 0
    statements: float | None = None
    round_trips: float | None = None
    cpu_us: float | None = None
    wasted: float | None = None
    without: str = ""
    notes: list[str] = field(default_factory=list)
    not_run: str | None = None

    @property
    def rate(self) -> float | None:
        """The median of the rounds."""
        return statistics.median(self.rates) if self.rates else None

    @property
    def is_ours(self) -> bool:
        """Among the lines of other queues."""
        return self.label.startswith(OURS)

    @property
    def faults(self) -> int:
        return self.order_faults + self.overlaps + self.missing

    def of(self, yardstick: Sequence[float]) -> float | None:
        """Our median divided by the yardstick's."""
        if not yardstick or self.rate is None:
            return None
        return self.rate / statistics.median(yardstick)


def cells(lines: Iterable[Line]) -> list[tuple[str, ...]]:
    """The rows of the table, headings first; without columns that hold no value."""
    rows = [_cells(line) for line in lines]
    used = [i for i in range(len(HEADINGS)) if i in TEXTS or {row[i] for row in rows} - {"", "-"}]
    return [tuple(row[i] for i in used) for row in (HEADINGS, *rows)]


def table(lines: Iterable[Line]) -> str:
    """The lines as text."""
    rows = cells(lines)
    last = len(rows[0]) - 1
    widths = [*(max(len(row[i]) for row in rows) for i in range(last)), 0]
    out = []
    for row in rows:
        set_out = [
            cell.ljust(width) if i in (0, 1, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.append("  ".join(set_out).rstrip())
    return "\n".join(out)


def _cells(line: Line) -> tuple[str, ...]:
    name = f"{line.scenario} {line.label}"
    if line.not_run:
        blank = [""] * (len(HEADINGS) - 4)
        return (line.database, name, *blank, line.without, f"not run: {line.not_run}")
    return (
        line.database,
        name,
        str(line.processes),
        _rates(line.rates),
        _ratio(line.of(line.limit)),
        _ratio(line.of(line.prototype)),
        _ratio(line.of(line.ours)),
        str(line.order_faults),
        str(line.overlaps),
        str(line.missing),
        _number(line.statements),
        _number(line.round_trips),
        _number(line.cpu_us, 1),
        "-" if line.wasted is None else f"{line.wasted:.1%}",
        line.without,
        "; ".join(line.notes),
    )


def _rates(rates: Sequence[float]) -> str:
    if not rates:
        return "-"
    middle = f"{statistics.median(rates):,.0f}"
    return middle if len(rates) == 1 else f"{middle} ({min(rates):,.0f}-{max(rates):,.0f})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
