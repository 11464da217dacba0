"""What unique keys promise, asked of the table after every COMMIT and after every send."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator

from msgworker.table import MessageTable
from proof.history import FAILED, NEW, PROCESSING, Rule, Violation

KEYS = {"one": "X", "two": None}
"""The object of each key."""


class Keys:
    """Which messages hold a key by what the table shows: those with tries left, whatever says the
    index about them."""

    def __init__(self, raw: sqlite3.Connection, spec: MessageTable) -> None:
        self._raw = raw
        self._most = spec.max_tries
        self._query = (
            f"SELECT unique_key, msg_id, status, error_try_times FROM {spec.name}"
            " WHERE unique_key IS NOT NULL ORDER BY msg_id"
        )

    def holders(self) -> dict[str, list[int]]:
        """The unfinished messages with each key."""
        found: dict[str, list[int]] = defaultdict(list)
        for key, msg_id, status, tries in self._raw.execute(self._query).fetchall():
            if status in (NEW, PROCESSING) or (status == FAILED and tries < self._most):
                found[key].append(msg_id)
        return found

    def judge(self) -> Iterator[Violation]:
        """At most one message holds a key."""
        for key, ids in self.holders().items():
            if len(ids) > 1:
                yield Violation(Rule.I7, f"messages {ids} hold key {key!r} at once")

    def answered(self, key: str, msg_id: int) -> Iterator[Violation]:
        """Judge the answer to a send: the message that it names is still to be done."""
        if msg_id not in self.holders()[key]:
            text = f"a send with key {key!r} was left to message {msg_id}, which does not hold it"
            yield Violation(Rule.I7, text)
