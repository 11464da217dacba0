"""How many messages behind a new head to read ahead.

`run_limit` of them if `lanes_limit` lanes are held. Fewer lanes have longer runs, so that a busy
object needs few claims: all lanes together hold at most run_limit * lanes_limit rows, of
PAYLOAD_BUDGET bytes by the mean size. Longer ones are read only for batches, or where runs are
handled to their end, and then only as long as LASTS_SECONDS. Nothing here reads a clock or a table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import starmap

from msgworker.instance.running.hand import Lane
from msgworker.store.rows import Row

PAYLOAD_BUDGET = 32_000_000
LASTS_SECONDS = 1.0
"""A run beyond `run_limit` may last so long: a lower id that is committed late, or that an operator
reruns, waits for its end."""
RUN_OF_BATCHES = 4
"""So many batches of one object are read ahead at least."""
GROWTH = 4
SAMPLE = 20
"""So many lanes, and rows, of a claim are looked at."""
NEWEST_SHARE = 0.25


class RunLength:
    """Used by the fetcher's thread only. run, lanes: `run_limit` and `lanes_limit`. batch: returns
    how many messages of an object may share a batch."""

    def __init__(self, run: int, lanes: int, batch: Callable[[], int] = lambda: 1) -> None:
        self._run = run
        self._batch = batch
        self._rows = run * lanes
        self._grown = run
        self._mean_payload = 0.0
        self._mean_seconds: float | None = None  # of one message in its lane
        self._watched: list[tuple[Lane, int, float]] = []

    def limit(self, lanes: int, ahead: int) -> int:
        """How many messages to read behind each new head, 0 = none.

        lanes: how many lanes share what may still be held: the new ones, and those that may be
        claimed beside them. ahead: messages that wait behind the heads of all other lanes.
        """
        if not self._run:
            return 0
        fits = min(self._rows, int(PAYLOAD_BUDGET / max(self._mean_payload, 1.0)))
        share = (fits - ahead) // max(1, lanes)
        batch = self._batch()
        least = max(self._run, RUN_OF_BATCHES * batch if batch > 1 else 0)
        return max(1, min(max(least, min(self._grown, self._lasting())), share))

    def _lasting(self) -> int:
        """How many messages of a lane last as long as a run may."""
        mean = LASTS_SECONDS if self._mean_seconds is None else self._mean_seconds
        return round(LASTS_SECONDS / max(mean, 1e-6))

    def read(self, lanes: Sequence[Lane], limit: int, now: float) -> None:
        """The runs of new lanes have been read; now: monotonic seconds."""
        some = [lane for lane in lanes[:SAMPLE] if len(lane.rows) > 1]
        self._watched = [*self._watched, *((lane, limit, now) for lane in some)][-SAMPLE:]
        rows = [row for lane in lanes[:SAMPLE] for row in lane.rows[-SAMPLE:]][-SAMPLE:]
        self._saw(starmap(Row, rows))

    def _saw(self, rows: Iterable[Row]) -> None:
        for row in rows:
            size = len(row.payload) if isinstance(row.payload, str | bytes) else 0
            self._mean_payload += (size - self._mean_payload) * 0.1

    @property
    def watched(self) -> int:
        """How many lanes it will learn from."""
        return len(self._watched)

    def learn(self, held: Container[Lane]) -> None:
        """Adjust to the lanes that have ended since the last call. held: those that have not."""
        ended = [one for one in self._watched if one[0] not in held]
        if not ended:
            return
        self._watched = [one for one in self._watched if one[0] in held]
        grown, cut = self._grown, self._rows
        for lane, limit, since in ended:
            done = lane.place + lane.width
            if lane.finished_at > since:
                self._took((lane.finished_at - since) / done)
            if done < len(lane.rows):  # a failure, a stop, a pause: what is behind is read again
                cut = min(cut, 2 * done)
            elif len(lane.rows) > limit:
                grown = max(grown, GROWTH * limit)
        self._grown = max(self._run, min(grown, cut))

    def _took(self, seconds: float) -> None:
        mean = seconds if self._mean_seconds is None else self._mean_seconds
        self._mean_seconds = mean + (seconds - mean) * NEWEST_SHARE
