"""The primaries of MariaDB by what they wrote: each transaction in the binary log has the id of the
server that first committed it, and a number that ascends over all of them (GTID).

What a server wrote since it became the primary is its reign. An old primary that comes back lacks
the whole reign of the one that replaced it. Who has a part of it has followed that one, even if an
asynchronous replica lacks the end of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ASK = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN"
    " ('server_id', 'gtid_domain_id', 'gtid_binlog_state', 'gtid_slave_pos', 'wsrep_on')"
)
"""So that one without such a variable can be asked, too."""


@dataclass(frozen=True, slots=True)
class Reign:
    """What this server wrote after the number `after`."""

    writer: int
    after: int


@dataclass(frozen=True, slots=True)
class Log:
    """What a server has: the last number of each server that wrote in its own domain."""

    server: int
    domain: int
    last: Mapping[int, int] = field(hash=False)

    def latest(self) -> Reign:
        """The reign of the server that wrote last."""
        writer = max(self.last, key=lambda server: self.last[server])
        return Reign(writer, max((n for s, n in self.last.items() if s != writer), default=0))

    def has_of(self, reign: Reign) -> bool:
        """Whether it has any of it."""
        return self.last.get(reign.writer, 0) > reign.after


class Reigns:
    """The latest one that was seen, and who ever wrote."""

    def __init__(self) -> None:
        self.tells = True
        self._domain = 0
        self._latest: Reign | None = None
        self._writers: frozenset[int] = frozenset()
        self._primary: int | None = None
        self._server: int | None = None  # the one that was asked last

    def ask(self, cursor: Any) -> Log | None:
        told = _variables(cursor)
        self.tells = _compares(told)
        return _log_of(told)

    def is_old(self, found: Log) -> bool:
        seen = self._latest
        if seen is None or found.domain != self._domain or found.server == seen.writer:
            return False
        # One that never wrote replaces the others, whatever it lacks.
        return found.server in self._writers and not found.has_of(seen)

    def sees(self, found: Log) -> bool:
        if found.domain != self._domain:
            self._latest, self._writers = None, frozenset()
        seen, latest, before = self._latest, found.latest(), self._primary
        if seen is None or found.has_of(seen) or found.server in (seen.writer, latest.writer):
            self._latest = latest
        if found.server not in self._writers or latest.writer == found.server:
            self._primary = found.server
        self._writers |= {found.server, *found.last}
        self._domain, self._server = found.domain, found.server
        return before not in (None, self._primary)

    def ask_other(self, cursor: Any) -> Log | None:
        return _log_of(_variables(cursor))

    def hears(self, found: Log) -> None:
        if self._latest is None:
            self._domain = found.domain
        elif found.domain != self._domain or not found.has_of(self._latest):
            return
        self._latest = found.latest()
        self._writers |= found.last.keys()

    def is_settled(self) -> bool:
        return self._latest is None or self._latest.writer == self._server

    def words(self, found: Log) -> str | None:
        if len(found.last) == 1:
            return None
        writer = found.latest().writer
        return f"server {writer} is the last that became the primary; older ones lack what it wrote"

    def words_of_old(self, found: Log) -> str:
        writer = None if self._latest is None else self._latest.writer
        return (
            f"server {found.server} lacks all that server {writer} wrote since that became the "
            "primary"
        )


def _variables(cursor: Any) -> dict[str, str]:
    cursor.execute(_ASK)
    return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def _compares(told: dict[str, str]) -> bool:
    """Not without a log, on MySQL, and in a Galera cluster, whose nodes all write."""
    return bool(told.get("gtid_binlog_state")) and told.get("wsrep_on") != "ON"


def _log_of(told: dict[str, str]) -> Log | None:
    if not _compares(told):
        return None
    domain, last = int(told["gtid_domain_id"]), dict[int, int]()
    for text in f"{told['gtid_binlog_state']},{told['gtid_slave_pos']}".split(","):
        of, _, rest = text.partition("-")
        if rest and int(of) == domain:
            writer, number = (int(part) for part in rest.split("-"))
            last[writer] = max(number, last.get(writer, 0))
    return Log(int(told["server_id"]), domain, last) if last else None
