"""The purchases of the bundled CDNOW sample, in order of time per customer.

Source: the 1/10 sample of the CDNOW data (brucehardie.com); see samples/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

FILE = "cdnow_sample.txt"


@dataclass(frozen=True, slots=True)
class Purchase:
    """One line of the file. number: its line, from 1 on. cents: what was paid, whole cents."""

    number: int
    customer: str
    day: date
    cds: int
    cents: int

    @property
    def payload(self) -> dict[str, int]:
        """What a message about it says."""
        return {"number": self.number, "cents": self.cents}


def find_file() -> Path:
    """The file, in an installed package or in the source tree."""
    here = Path(__file__).parent
    for path in (here / FILE, here.parent.parent / "samples" / "data" / FILE):
        if path.exists():
            return path
    raise FileNotFoundError(f"{FILE} is not part of this installation")


def read(path: Path | None = None) -> list[Purchase]:
    """All purchases, as they stand in the file."""
    lines = (path or find_file()).read_text(encoding="ascii").splitlines()
    return list(_parse(lines))


def _parse(lines: list[str]) -> Iterator[Purchase]:
    for number, line in enumerate(lines, start=1):
        _, customer, day, cds, dollars = line.split()
        whole, _, part = dollars.partition(".")
        cents = int(whole) * 100 + int(part.ljust(2, "0")[:2])
        when = date(int(day[:4]), int(day[4:6]), int(day[6:]))
        yield Purchase(number, customer, when, int(cds), cents)
