"""What handlers saw: did two of one object overlap, did they start in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgworker import Message


@dataclass
class Watch:
    """Intervals of handlers: did two of one object overlap, did they start in order."""

    spans: list[tuple[Any, int, float, float]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    now: int = 0
    most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, msg: Message[Any]) -> None:
        self.saw(msg.object_id, msg.msg_id)

    def saw(self, object_id: Any, msg_id: int, work: Callable[[], Any] | None = None) -> None:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.now += 1
            self.most = max(self.most, self.now)
            begin = time.monotonic()
        try:
            if work is not None:
                work()
        finally:
            with self._lock:
                self.now -= 1
                self.spans.append((object_id, msg_id, begin, time.monotonic()))

    @property
    def ids(self) -> list[int]:
        """In order of start."""
        return [span[1] for span in sorted(self.spans, key=lambda s: s[2])]

    def of(self, object_id: Any) -> list[int]:
        found = [span for span in self.spans if span[0] == object_id]
        return [span[1] for span in sorted(found, key=lambda s: s[2])]

    def assert_exclusive(self) -> None:
        """No two handlers of one object at once."""
        last: dict[Any, tuple[Any, int, float, float]] = {}
        for span in sorted(self.spans, key=lambda s: s[2]):
            before = last.get(span[0])
            if span[0] is not None and before is not None:
                assert before[3] <= span[2], f"{before} and {span} overlap"
            last[span[0]] = span

    def assert_in_order(self, expected: Sequence[Any] | None = None) -> None:
        """Each object by msg_id, each message once; `expected`: all of these and no others."""
        for object_id in {span[0] for span in self.spans} - {None}:
            ids = self.of(object_id)
            assert ids == sorted(set(ids)), f"object {object_id}: {ids}"
        if expected is not None:
            assert sorted(self.ids) == sorted(expected)


def breathe() -> None:
    """Let other threads in, so that a missing exclusion shows."""
    threading.Event().wait(0.001)
