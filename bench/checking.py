"""Order and overlap, checked from the logs of all processes on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.handlers import Entry
from bench.process import Seen


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the logs say.

    order_faults: a message started after a later one of its object. overlaps: a message started
    while another of its object ran. repeated: handled more than once. seconds: first start to last
    end.
    """

    handled: int
    seconds: float
    order_faults: int
    overlaps: int
    repeated: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.handled / self.seconds if self.seconds else 0.0


def judge(seen: Sequence[Seen]) -> Verdict:
    """Check the logs of one round."""
    log = sorted((entry for one in seen for entry in one.log), key=lambda entry: entry[2])
    if not log:
        return Verdict(0, 0.0, 0, 0, 0)
    order_faults, overlaps = faults(log)
    seconds = (max(entry[3] for entry in log) - log[0][2]) / 1e9
    repeated = len(log) - len({entry[1] for entry in log})
    return Verdict(len(log), seconds, order_faults, overlaps, repeated)


def faults(log: Iterable[Entry]) -> tuple[int, int]:
    """Order faults and overlaps of a log that is sorted by start."""
    order_faults = overlaps = 0
    newest: dict[str, tuple[int, int]] = {}
    for object_id, msg_id, started, ended in log:
        if object_id is None:
            continue
        highest, busy_until = newest.get(object_id, (-1, -1))
        order_faults += msg_id <= highest
        overlaps += started < busy_until
        newest[object_id] = (max(highest, msg_id), max(busy_until, ended))
    return order_faults, overlaps
