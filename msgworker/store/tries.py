"""Every failed try with its error, time and fingerprint, in a table beside the messages."""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db.clock import UtcDateTime, now, real_instant
from msgworker.db.types import beginning, shortened
from msgworker.message import SPENT, plain_error
from msgworker.payload import BEGINNING, shown
from msgworker.store.rows import among_ids
from msgworker.table.columns import MAX_ERROR, Cols
from msgworker.table.tables import ONE, Tables

# --- The fingerprint of errors: type, place and words.
#
# Ids, numbers and quoted values differ from message to message; they are masked. So is the line of
# code, which moves with every release; its file and its function are kept.

MASKED_LENGTH = 300
DIGITS = 12
MASK = "#"

_PLACE = re.compile(r" \[([^\[\]\s]+):\d+((?: in [^\[\]\s]+)?)\]\s*$")
_SPENT = re.compile(re.escape(SPENT).replace(r"\{\}", r"\d+") + "$")
_TYPE = re.compile(r"[A-Za-z_][\w.]*(?=: |$)")
_HELD = re.compile(r" \(\d+ held back behind them\)")


def _quoted(match: re.Match[str]) -> str:
    """A value in quotes, masked; one that does not end is left as it is, as a whole: to try each
    escaped quote in it would make the time quadratic."""
    return f"{match[0][0]}{MASK}{match[1]}" if match[1] else match[0]


_RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<!\w)'(?:[^'\\]|\\.)*('(?!\w))?"), _quoted),
    (re.compile(r'"(?:[^"\\]|\\.)*(")?'), _quoted),
    (re.compile(r"`[^`]*`"), f"`{MASK}`"),
    (re.compile(r"=\([^()]*\)"), f"=({MASK})"),  # Key (id)=(17) already exists
    # The name in an address is bounded: it may begin at every dot.
    (re.compile(r"\b(?!(?:ORA|DPY|DPI|PLS)-\d)[\w.+-]{0,64}+@[\w.-]+"), MASK),
    # A word with a digit in it is an id; but Oracle's codes say what happened.
    (re.compile(r"(?<![\w-])(?!(?:ORA|DPY|DPI|PLS)-\d)[\w-]*\d[\w-]*(?:[.:,/]\w*\d[\w-]*)*"), MASK),
    (re.compile(r"\s+"), " "),
]


def masked(error_text: str) -> str:
    """The text of an error as all errors of its kind have it, in one line: at most 300 characters
    of it, and its place."""
    rest, place = _apart(error_text)
    kind = _TYPE.match(rest)
    head, rest = (kind[0], rest[kind.end() :]) if kind else ("", rest)
    if head == "ItemsFailed":  # how many failed behind the first one makes no difference
        rest = _HELD.sub("", rest.split("; ", 1)[0])
    for pattern, mask in _RULES:
        rest = pattern.sub(mask, rest)
    return (head + rest).strip()[:MASKED_LENGTH] + place


def in_common(first: str, last: str) -> str | None:
    """What all errors of one kind say, in one line, with their place as in `masked`; None if their
    texts differ. first, last: of their texts, sorted: what two of them begin with, all between
    them do."""
    (one, place), (two, _) = _apart(first), _apart(last)
    if one.strip() != two.strip():
        return None
    return " ".join(one.split())[:MASKED_LENGTH] + place


def unplaced(error_text: str) -> str:
    """An error without its place; of a very long one what operators read, see `shortened`."""
    return str(shortened(_apart(error_text)[0].strip()))


def _apart(error_text: str) -> tuple[str, str]:
    """An error without its place, and that without its line."""
    error_text = _SPENT.sub("", error_text)  # the same failure as that of the tries before it
    place = _PLACE.search(error_text)
    if place is None:
        return error_text, ""
    return error_text[: place.start()], f" [{place[1]}{place[2]}]"


@functools.lru_cache(256)  # the same for a try that is stored and for its line in the log
def fingerprint(error: str | bytes) -> str:
    """12 hexadecimal digits, the same for all errors that are alike but for ids and values; of a
    very long one, of the beginning that operators read."""
    text = error[:BEGINNING] if isinstance(error, str) else shown(shortened(error), BEGINNING)
    return hashlib.sha256(masked(text).encode("utf-8", "replace")).hexdigest()[:DIGITS]


# --- Every failed try with its error and time, in a table beside the messages.
#
# Written in the transaction that settles or recovers the message, after the fenced UPDATE has won,
# so the history always agrees with the row. A message that succeeds at once costs nothing.

FRAME = '  File "'
END_LINES = 6
KEPT = 20
"""The most tries of a message that are stored; older ones are deleted."""


class Kind(enum.StrEnum):
    """How a try ended."""

    FAILED = "failed"  # an exception, or a RetryLater beyond its limit
    REJECTED = "rejected"  # no more tries were wanted
    CRASH = "crash"  # its process died


class Failure(NamedTuple):
    """A try to store. ran_seconds: since its handler started, None = that is not known."""

    msg_id: int
    kind: Kind
    error: str | None
    trace: str | None = None
    ran_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """A failed try. number: counted from the first try of all, reruns included.

    started_at: when its handler started, None where that is not known; of a crash, when it was
    claimed.
    traceback: the user's frames whole, the error last; None where none was kept, and in lists.
    """

    number: int
    kind: str
    instance: str | None
    started_at: datetime | None
    ended_at: datetime
    error: str | None
    fingerprint: str | None
    traceback: str | None = None

    @property
    def ran_seconds(self) -> float | None:
        """How long its handler ran; None where that is not known, as of a crash."""
        if self.started_at is None or self.kind == Kind.CRASH:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    @property
    def ends_with(self) -> str | None:
        """The last frame of the traceback, and the error; at most 6 lines. None without one."""
        if self.traceback is None:
            return None
        lines = self.traceback.split("\n")
        starts = [i for i, line in enumerate(lines) if line.startswith(FRAME)]
        return "\n".join(lines[starts[-1] if starts else 0 :][:END_LINES])


def keep(conn: Connection, t: Tables, failures: Sequence[Failure], *, instance: str) -> None:
    """Add tries of messages whose rows this transaction has just changed, and which this instance
    owned. The oldest ones beyond KEPT per message are deleted."""
    found: dict[int, tuple[datetime | None, int, datetime]] = {}
    for ids in t.portions([f.msg_id for f in failures]):
        params = {"mw_ids": ids, "mw_table": t.message.name}
        last_tries = t.built("tries_last", lambda: _last_tries(t))
        for msg_id, claimed_at, last, at in conn.execute(last_tries, params).all():
            found[msg_id] = (claimed_at, last or 0, at)
    keeps_traces = t.keeps(t.failed_try.c.traceback)
    rows = [
        {
            "mw_table": t.message.name,
            "mw_id": f.msg_id,
            "mw_no": found[f.msg_id][1] + 1,
            "mw_kind": str(f.kind),
            "mw_who": instance[:64],
            "mw_started": _began(f, *found[f.msg_id]),
            "mw_error": t.own_text(f.error, MAX_ERROR),
            "mw_print": fingerprint(f.error or ""),
            **({"mw_trace": t.own_text(f.trace)} if keeps_traces else {}),
        }
        for f in failures
        if f.msg_id in found
    ]
    if rows:
        conn.execute(t.built("tries_insert", lambda: _insert(t)), rows)
    full = [
        {"mw_table": t.message.name, "mw_id": msg_id, "mw_no": last + 1 - KEPT}
        for msg_id, (_, last, _) in found.items()
        if last >= KEPT
    ]
    if full:
        conn.execute(t.built("tries_delete", lambda: _delete_up_to(t)), full)


def _began(one: Failure, claimed_at: datetime | None, _: int, at: datetime) -> datetime | None:
    if one.kind is Kind.CRASH:
        return claimed_at
    return None if one.ran_seconds is None else at - timedelta(seconds=one.ran_seconds)


def of(
    conn: Connection, t: Tables, ids: Sequence[int], *, traces: bool = False
) -> dict[int, list[Try]]:
    """The kept tries of the messages that have failed, oldest first. traces: with tracebacks."""
    c = t.failed_try.c
    columns = [c.msg_id, c.try_no, c.kind, c.instance, c.started_at, c.ended_at]
    columns += [c.error, c.fingerprint, *([c.traceback] if traces and t.keeps(c.traceback) else [])]
    query = sa.select(*columns).where(c.table_name == t.message.name, t.among(c.msg_id))
    found: defaultdict[int, list[Try]] = defaultdict(list)
    for row in among_ids(conn, t, query.order_by(c.msg_id, c.try_no), ids):
        found[row[0]].append(Try(*row[1:]))
    return dict(found)


def last_try(t: Tables, msg_id: ColumnElement[Any]) -> ColumnElement[Any]:
    """The number of a message's last try, NULL if none is kept."""
    c = t.failed_try.alias("l").c
    table = bindparam("mw_table", type_=sa.String())
    last = sa.select(sa.func.max(c.try_no)).where(c.table_name == table, c.msg_id == msg_id)
    return last.scalar_subquery()


def last_of(t: Tables, msg_id: ColumnElement[Any], name: str) -> ColumnElement[Any]:
    """A column of a message's last try, NULL if none is kept."""
    c = t.failed_try.alias("x").c
    last = sa.select(c[name]).where(c.table_name == t.message.name, c.msg_id == msg_id)
    return last.order_by(c.try_no.desc()).limit(ONE).scalar_subquery()


# --- Groups of failures: messages whose last errors have one fingerprint.


def group_columns(t: Tables, c: Cols) -> list[ColumnElement[Any]]:
    """What decides the group of a failed message, for `group_of`."""
    error: Any = sa.null() if c.last_error is None else beginning(c.last_error)
    last = last_of(t, c.msg_id, "fingerprint")
    return [last.label("p"), error.label("e"), t.tries(c).label("n")]


def group_of(last_try: str | None, error: str | bytes | None, tries: int) -> str | None:
    """The group of a failed message: that of its last try, without one that of its last error. None
    if it has not failed: an edit has left it so (store/change.py)."""
    if last_try is not None or (error is None and tries == 0):
        return last_try
    return fingerprint(plain_error(error) or "")


def in_group(conn: Connection, t: Tables, ids: Sequence[int], group: str) -> list[int]:
    """Those of the failed messages that are of a group, in their order."""
    c = t.cols()
    query = sa.select(c.msg_id, *group_columns(t, c)).where(t.among(c.msg_id))
    rows = among_ids(conn, t, query, ids)
    found = {row[0] for row in rows if group_of(*row[1:]) == group}
    return [i for i in ids if i in found]


# --- The statements of `keep`.


def _last_tries(t: Tables) -> sa.Select[Any]:
    c = t.cols()
    claimed: ColumnElement[Any] = sa.null() if c.claimed_at is None else real_instant(c.claimed_at)
    columns = (c.msg_id, claimed, last_try(t, c.msg_id), now().label("mw_now"))
    return sa.select(*columns).where(t.among(c.msg_id))


def _insert(t: Tables) -> sa.Insert:
    trace = bindparam("mw_trace", type_=t.failed_try.c.traceback.type)
    # Last: Oracle takes no other long text behind one of any length.
    kept = {"traceback": trace} if t.keeps(t.failed_try.c.traceback) else {}
    return sa.insert(t.failed_try).values(
        table_name=bindparam("mw_table"),
        msg_id=bindparam("mw_id"),
        try_no=bindparam("mw_no"),
        kind=bindparam("mw_kind"),
        instance=bindparam("mw_who"),
        started_at=bindparam("mw_started", type_=UtcDateTime()),
        ended_at=now(),
        error=bindparam("mw_error"),
        fingerprint=bindparam("mw_print"),
        **kept,
    )


def _delete_up_to(t: Tables) -> sa.Delete:
    c = t.failed_try.c
    old = (c.msg_id == bindparam("mw_id"), c.try_no <= bindparam("mw_no"))
    return sa.delete(t.failed_try).where(c.table_name == bindparam("mw_table"), *old)
