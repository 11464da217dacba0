"""The primaries of MariaDB and MySQL by what they wrote: each transaction in the binary log has the
id of the server that first committed it, and a number (GTID). On MariaDB the numbers ascend over
all servers; on MySQL each server counts its own.

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
    " ('server_id', 'gtid_domain_id', 'gtid_binlog_state', 'gtid_slave_pos', 'wsrep_on',"
    " 'server_uuid', 'gtid_executed', 'group_replication_group_name')"
)
"""So that one without such a variable can be asked, too."""


@dataclass(frozen=True, slots=True)
class Reign:
    """What this server wrote after the number `after`."""

    writer: int | str
    after: int


@dataclass(frozen=True, slots=True)
class Log:
    """What a server has: the last number of each server that wrote in its own domain. apart: each
    of them counts its own."""

    server: int | str
    domain: int
    last: Mapping[int | str, int] = field(hash=False)
    apart: bool = False

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
        self._writers: frozenset[int | str] = frozenset()
        self._primary: int | str | None = None
        self._server: int | str | None = None  # the one that was asked last
        # Where each counts its own: what the last one had, and its reign.
        self._had: Mapping[int | str, int] = {}
        self._began: Reign | None = None

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
        seen, latest, before = self._latest, self._latest_of(found), self._primary
        if seen is None or found.has_of(seen) or found.server in (seen.writer, latest.writer):
            self._latest = latest
        new = found.server not in self._writers or latest.writer == found.server
        if new or found.apart:
            self._primary = found.server
        self._writers |= {found.server, *found.last}
        self._had = found.last
        self._domain, self._server = found.domain, found.server
        return before not in (None, self._primary)

    def _latest_of(self, found: Log) -> Reign:
        if not found.apart:
            return found.latest()
        if self._began is None or found.server != self._primary:
            before = found.last if self._primary is None else self._had
            self._began = Reign(found.server, before.get(found.server, 0))
        # Until it has written it may yet be the one before that reigns.
        return self._began if found.has_of(self._began) else self._latest or self._began

    def ask_other(self, cursor: Any) -> Log | None:
        return _log_of(_variables(cursor))

    def hears(self, found: Log) -> None:
        if found.apart:  # replicas there often have transactions of their own, from their set-up
            return
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
    """Not without a log, and in a cluster, whose nodes may all write: Galera, Group Replication."""
    if told.get("gtid_executed"):
        return not told.get("group_replication_group_name")
    return bool(told.get("gtid_binlog_state")) and told.get("wsrep_on") != "ON"


def _log_of(told: dict[str, str]) -> Log | None:
    if not _compares(told):
        return None
    last: dict[int | str, int] = {}
    if told.get("gtid_executed"):
        for text in told["gtid_executed"].split(","):
            server, *parts = text.strip().split(":")
            # A part with letters is a tag: what has one is counted apart by the server, too.
            numbers = [int(part.split("-")[-1]) for part in parts if part[:1].isdigit()]
            last[server] = max([*numbers[-1:], last.get(server, 0)])
        return Log(told["server_uuid"], 0, last, apart=True)
    domain = int(told["gtid_domain_id"])
    for text in f"{told['gtid_binlog_state']},{told['gtid_slave_pos']}".split(","):
        of, _, rest = text.partition("-")
        if rest and int(of) == domain:
            writer, number = (int(part) for part in rest.split("-"))
            last[writer] = max(number, last.get(writer, 0))
    return Log(int(told["server_id"]), domain, last) if last else None
