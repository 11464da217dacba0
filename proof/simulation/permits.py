"""What the limits of topics promise, asked of the table after every COMMIT."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgworker.limit import Limit
from proof.history import Rule, Violation

LIMITED, METERED = "limited", "metered"
LIMITS = {LIMITED: Limit(max_running=2), METERED: Limit(starts=1, seconds=1, burst=2)}
"""The limits of the handlers of these topics, in all instances."""
TOPICS = (LIMITED, LIMITED, METERED, "plain")
CLOCK_SECONDS = 0.002
"""The database's clock gives whole milliseconds."""


class Permits:
    """topics: of all messages, by msg_id. starts: when each message of METERED was flagged."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}
        self.starts: list[float] = []

    def topic_for(self, msg_id: int, seed: int) -> str:
        """Not drawn: the other draws of a seed stay as they are."""
        return TOPICS[(msg_id * 7919 + seed) % len(TOPICS)]

    def judge(
        self, running: Collection[int], flagged: Collection[int], now: float
    ) -> Iterator[Violation]:
        """running: what is at 1 now. flagged: of these what was flagged just now. now: seconds of
        the database's clock."""
        held = [i for i in running if self.topics.get(i) == LIMITED]
        most = LIMITS[LIMITED].max_running
        if most is not None and len(held) > most:
            text = f"messages {held} of topic {LIMITED} are at 1 at once, {most} may be"
            yield Violation(Rule.I11, text)
        self.starts += [now for i in flagged if self.topics.get(i) == METERED]
        rate = LIMITS[METERED]
        for n, since in enumerate(self.starts):
            seconds = now - since + CLOCK_SECONDS
            count = len(self.starts) - n
            if count > rate.burst + seconds * rate.starts / rate.seconds:
                text = f"{count} messages of topic {METERED} started within {seconds:.3f} s, of "
                yield Violation(Rule.I11, text + str(rate))
                return
