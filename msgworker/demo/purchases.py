"""The purchases of the bundled CDNOW sample, in order of time per customer.

Source: the 1/10 sample of the CDNOW data (brucehardie.com); see samples/README.md.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

FILE = "cdnow_sample.txt"
_LINE = re.compile(r" *\d+ +(\d+) +(\d{4})(\d\d)(\d\d) +(\d+) +(\d+)\.(\d\d) *", re.ASCII)


@dataclass(frozen=True, slots=True)
class Purchase:
    """One line of the file. number: its line, from 1 on. cents: what was paid, whole cents."""

    number: int
    customer: str
    date: datetime.date
    cds: int
    cents: int

    @property
    def payload(self) -> dict[str, int]:
        """What a message about it says."""
        return {"number": self.number, "cents": self.cents}


def find_file() -> Traversable:
    """The file: part of an installed package, else in the source tree's samples/data.

    Raises FileNotFoundError.
    """
    packed = resources.files("msgworker.demo") / FILE
    in_source_tree = Path(__file__).parents[2] / "samples" / "data" / FILE
    for place in (packed, in_source_tree):
        if place.is_file():
            return place
    raise FileNotFoundError(f"{FILE} is not part of this installation")


def read(file: Traversable | None = None) -> list[Purchase]:
    """All purchases, as they stand in the file. Raises FileNotFoundError, ValueError."""
    lines = (file or find_file()).read_text(encoding="ascii").splitlines()
    return [parse(number, line) for number, line in enumerate(lines, start=1)]


def parse(number: int, line: str) -> Purchase:
    """One line: id in the master set, customer, date, number of CDs, dollars. Raises ValueError."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"line {number} is not a purchase: {line!r:.80}")
    customer, year, month, day, cds, dollars, cents = found.groups()
    date = datetime.date(int(year), int(month), int(day))
    return Purchase(number, customer, date, int(cds), int(dollars) * 100 + int(cents))


def spent(purchases: Iterable[Purchase]) -> dict[str, int]:
    """What each customer paid in all before any discount, in cents."""
    totals: Counter[str] = Counter()
    for purchase in purchases:
        totals[purchase.customer] += purchase.cents
    return dict(totals)
