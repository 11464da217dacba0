"""Errors injected at a statement or at a COMMIT: before it, or behind it, as if its answer were
lost."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from proof.oracle.errors import by_name

Place = Literal["statement", "after statement", "before commit", "after commit"]


class Faults:
    """At most one at a time, in this process. It comes once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._code: str | None = None
        self._place: Place = "statement"
        self._left = 0
        self._only: re.Pattern[str] = re.compile("")
        self._begun: set[int] = set()
        self.raised = 0

    @contextmanager
    def planned(self, code: str, place: Place, nth: int = 1, only: str = "") -> Iterator[Faults]:
        """Raise the error of a code, such as ORA-00060, at the nth statement that matches `only`;
        or at the nth COMMIT of a transaction that such a statement was in."""
        with self._lock:
            self._code, self._place, self._left = code, place, nth
            self._only, self.raised = re.compile(only, re.I | re.S), 0
            self._begun.clear()
        try:
            yield self
        finally:
            with self._lock:
                self._code = None

    def at_statement(self, sql: str) -> None:
        self._at(sql, "statement")

    def after_statement(self, sql: str) -> None:
        self._at(sql, "after statement")

    def _at(self, sql: str, place: Place) -> None:
        with self._lock:
            if self._code is None or not self._only.search(sql):
                return
            self._begun.add(threading.get_ident())
            due = self._place == place and self._due()
        if due:
            self._fail()

    def before_commit(self) -> None:
        self._at_commit("before commit")

    def after_commit(self) -> None:
        self._at_commit("after commit")
        with self._lock:
            self._begun.discard(threading.get_ident())

    def _at_commit(self, place: Place) -> None:
        with self._lock:
            mine = threading.get_ident() in self._begun
            due = self._code is not None and self._place == place and mine and self._due()
        if due:
            self._fail()

    def _due(self) -> bool:
        self._left -= 1
        return self._left == 0

    def _fail(self) -> None:
        self.raised += 1
        assert self._code is not None
        raise by_name(self._code)


faults = Faults()
