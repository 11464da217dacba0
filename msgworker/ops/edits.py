"""Edit a message that waits or is dead, in its place: conditional on what was seen, audited; and
acknowledge dead ones."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import partial
from typing import Any, Unpack

from sqlalchemy import Connection

from msgworker import producing
from msgworker.config import whole
from msgworker.db.clock import kind_of, read_instant
from msgworker.db.types import whole_number
from msgworker.errors import ConfigError
from msgworker.message import ACKNOWLEDGED, State, Status
from msgworker.ops.operation import Step
from msgworker.ops.repairs import Repairs, WriteOptions, recorded
from msgworker.ops.results import How, Repaired, Skip, Why
from msgworker.ops.selection import Action, DryRun
from msgworker.payload import encode, pretty, shown
from msgworker.store import change, send
from msgworker.store.audit import CHANGES, Edited, kept_changes
from msgworker.store.bounded import LEAST, MOST
from msgworker.store.change import Held
from msgworker.table.tables import Tables


class Keep(enum.Enum):
    """Stands for a value that stays as it is, where None is a value too."""

    KEEP = "keep"


KEEP = Keep.KEEP
_WHY = {Status.PROCESSING: Why.RUNNING, Status.DONE: Why.NOT_EDITED}


_PARAMS = {
    "topic": "b_topic",
    "payload": "b_payload",
    "available_at": "b_at",
    "priority": "b_priority",
}
"""What may be edited, and the parameters of a statement that sets it."""


def _checked(t: Tables, wanted: dict[str, Any]) -> dict[str, Any]:
    """New values by column, as they are written; raises ConfigError or PayloadError."""
    if not wanted:
        raise ConfigError("give what to edit: topic, payload, available_at or priority")
    found = dict(wanted)
    if "topic" in found:
        producing.check_topic(found["topic"])
    if "priority" in found:
        found["priority"] = producing.checked_priority(found["priority"], t)
    for role in found:
        if not t.has(role):
            raise ConfigError(
                f"table {t.spec.name} has no {role} column: messages have none to be edited"
            )
    if "payload" in found:
        found["payload"] = encode(found["payload"])
    if found.get("available_at") is not None:
        producing.check_at("available_at", found["available_at"], t)
    send.check_limits(t, {_PARAMS[role]: value for role, value in found.items()})
    return found


def _acknowledge(t: Tables) -> Action:
    if not t.has("last_error"):
        raise ConfigError(
            f"table {t.spec.name} has no last_error column, where acknowledgements stand; add one"
        )
    return Action(
        kind="acknowledge",
        may=(State.DEAD,),
        statuses=(State.DEAD,),
        refused="are not acknowledged: only dead ones are",
        chosen=(State.DEAD,),
        change=lambda conn, t, ids, by: change.acknowledge(
            conn, t, ids, text=f"{ACKNOWLEDGED}{by.actor}: {by.reason}"
        ),
        why={state: Why.NOT_DEAD for state in State if state is not State.DEAD},
        unfit=lambda conn, t, ids: {i: Skip(i, Why.KNOWN) for i in change.known(conn, t, ids)},
        leaves_held=True,
    )


class Edits(Repairs):
    """Edits, and acknowledgements; `how` as in `How`."""

    def edit(
        self,
        msg_id: int,
        *,
        topic: str | None = None,
        payload: Any = KEEP,
        available_at: datetime | Keep | None = KEEP,
        priority: int | None = None,
        seen: str | None = None,
        **how: Unpack[How],
    ) -> Repaired:
        """Correct a message that waits or is dead; it keeps its id and its place.

        What is not given stays. payload: as of `send`, None = NULL. available_at: an aware instant
        before which it does not start, None = at once; not of a dead message. priority: 0 or more.

        The result has `changes`, old and new, and `seen`: give that of a dry run, and the edit is
        done only if the message is still as it was then. Skipped: one that runs, that is done, that
        has changed since, and that a run may have been read ahead with after it was discarded. A
        dead message stays dead until it is rerun. A new one may be failed with no failed try
        afterwards, which waits for its turn as before: others may have read what it was. What an
        edit means for limits, keys, jobs and chains: docs/operate/rerun.md.

        A reason is required; the audit keeps it with the old and the new values. Raises
        ConfigError, also where the table has no such column, and PayloadError.
        """
        whole("msg_id", msg_id, LEAST, MOST)
        if seen is not None and (
            not isinstance(seen, str) or not re.fullmatch("[0-9a-f]{16}", seen)
        ):
            raise ConfigError(f"seen is what a dry run has returned, got {seen!r:.80}")
        by, dry_run = self._asked("edit", how, needs_reason="edit")
        t = self._tables
        given = dict(topic=topic, payload=payload, available_at=available_at, priority=priority)
        kept = {"payload": KEEP, "available_at": KEEP}
        wanted = _checked(t, {n: one for n, one in given.items() if one is not kept.get(n)})
        with self._reading() as (conn, t):
            held = change.to_edit(conn, t, msg_id)
            changes = () if held is None else tuple(_changes(t, held, wanted))
            why = _why_not(conn, t, msg_id, held, seen, changes)
        if why is None and "available_at" in wanted and held and _is_dead(t, held):
            raise ConfigError(
                f"message {msg_id} is dead and waits for no instant: rerun it, then edit "
                "available_at"
            )
        if why is None and not changes:
            why = Why.SAME
        if why is not None:
            skips, counted = (Skip(msg_id, why),), ((why, 1),)
            return Repaired(
                kind="edit", matched=1, skipped=1, dry_run=dry_run, why=counted, skips=skips
            )
        assert held is not None
        before = held.seen
        if dry_run:
            would = self._counted("edit", DryRun([msg_id], 1))
            return replace(would, changes=changes, seen=before)
        self._ready()
        columns = {one.column for one in changes}
        at_once = "available_at" in columns and wanted["available_at"] is None
        params = {
            _PARAMS[name]: value
            for name, value in wanted.items()
            if name in columns and not (at_once and name == "available_at")
        }

        def once(op_id: int, ids: list[int], conn: Connection) -> Step:
            held = change.to_edit(conn, t, msg_id, lock=True)
            why = _why_not(conn, t, msg_id, held, before, changes)
            if why is not None:
                return Step(1, 0, [Skip(msg_id, why)])
            assert held is not None
            write = partial(change.edit, held=held, params=params, at_once=at_once)
            recorded(conn, t, op_id, ids, lambda conn, t, ids: write(conn, t, ids[0]))
            return Step(1, 1)

        op = self._operation("edit", by, {"ids": [msg_id], CHANGES: kept_changes(changes)})
        op.over([msg_id], once)
        done = op.end()
        return replace(done, changes=changes if done.changed else (), seen=before)

    def acknowledge(
        self, ids: Iterable[int] | int | None = None, **options: Unpack[WriteOptions]
    ) -> Repaired:
        """Say that dead messages are known: they stay dead, and leave the numbers that call for
        help, `failures` and alerts, as discarded and cancelled ones do. What they hold up, an
        object (on_dead="block") or a job, stays so until they are rerun or discarded: a dry run
        counts those (`Repaired.holding`), and `counts` and `overview` go on to do so.

        By ids, or by at least one filter. Who and why stand before the last error, in
        `MessageInfo.acknowledged`, and in the audit; nothing else changes. One that is rerun and
        dies again is not acknowledged. A reason is required. Skipped: what is not dead, and what is
        acknowledged, discarded or cancelled already. up_to, count_limit, expected_count, rate,
        operation, progress: as in `rerun`. Raises ConfigError, also if the table has no
        last_error column.
        """
        return self._write("acknowledge", lambda _: _acknowledge(self._tables), ids, options)


def _why_not(
    conn: Connection,
    t: Tables,
    msg_id: int,
    held: Held | None,
    seen: str | None,
    changes: Sequence[Edited],
) -> Why | None:
    """Why a message is not edited as it is now; None if it is. seen: as it was then."""
    if held is None:
        return Why.NOT_THERE
    if held.status not in (Status.NEW, Status.FAILED):
        return _WHY.get(held.status, Why.UNKNOWN)
    if seen is not None and held.seen != seen:
        return Why.EDITED
    return Why.AHEAD if _is_ahead(conn, t, msg_id, held, changes) else None


def _is_dead(t: Tables, held: Held) -> bool:
    tries = whole_number(held.tries)
    return held.status == Status.FAILED and (tries is None or tries >= t.spec.max_tries)


def _is_ahead(
    conn: Connection, t: Tables, msg_id: int, held: Held, changes: Sequence[Edited]
) -> bool:
    """Whether an instance may hold it as it was, and start it so if it is rerun: it was given up
    while it waited behind a message that still runs."""
    if held.object_id is None or not any(one.column in ("topic", "payload") for one in changes):
        return False
    return _is_dead(t, held) and held.given_up and change.object_runs(conn, t, msg_id)


def _changes(t: Tables, held: Held, wanted: dict[str, Any]) -> Iterator[Edited]:
    """What differs."""
    if "topic" in wanted and (held.topic is None or wanted["topic"] != held.topic):
        yield Edited("topic", _text(held.topic), wanted["topic"])
    if "payload" in wanted and not _same_json(held, wanted["payload"]):
        old = held.payload if held.length is None else f"(too long: {held.length} characters)"
        yield Edited("payload", _text(old), wanted["payload"])
    if "available_at" in wanted:
        was, new = _instant(t, held.available_at), wanted["available_at"]
        if new != was or (was is None and held.available_at is not None):
            raw = _text(held.available_at) if was is None else was.isoformat()
            text = None if new is None else new.astimezone(UTC).isoformat()
            yield Edited("available_at", raw, text)
    number = whole_number(held.priority)
    if "priority" in wanted and number != wanted["priority"]:
        old = _text(held.priority) if number is None else number
        yield Edited("priority", old, wanted["priority"])


def _instant(t: Tables, raw: Any) -> datetime | None:
    try:
        return read_instant(raw, kind_of(t.cols().available_at).zone)
    except ValueError:
        return None


def _text(value: Any) -> str | None:
    """A value of a row, also one that is no text, as text that can be kept."""
    if value is None:
        return None
    text = value if isinstance(value, str) else shown(value, 2000)
    return text.encode("utf-8", "backslashreplace").decode()


def _same_json(held: Held, new: str | None) -> bool:
    """Whether a payload says the same, however it is written."""
    if held.length is not None or not isinstance(held.payload, str | None):
        return False
    if held.payload == new or held.payload is None or new is None:
        return held.payload == new
    try:
        return _canonical(held.payload) == _canonical(new)
    except (ValueError, ArithmeticError, RecursionError):
        return False


def _canonical(text: str) -> str:
    """JSON as one text, however it is written; its numbers keep all their digits."""

    def number(text: str) -> dict[str, str]:
        return {NUMBER: str(Decimal(text).normalize(EXACT))}

    return json.dumps(json.loads(text, parse_float=number), sort_keys=True)


EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
NUMBER = "\0 number"  # no object of a payload has this key


# --- The differences, as text.


def diff(
    change: Edited, *, as_seen: Callable[[str], str] = pretty, around: int = 3
) -> list[tuple[str, str]]:
    """The lines of a change, each behind "-", "+" or " "; "@" = lines are left out.

    as_seen: makes the text of a payload. around: lines before and after what differs.
    """
    from difflib import unified_diff

    if change.column != "payload":
        values = (("-", change.old), ("+", change.new))
        return [(sign, "none" if one is None else str(one)) for sign, one in values]
    old, new = (
        [] if one is None else as_seen(str(one)).split("\n") for one in (change.old, change.new)
    )
    lines = list(unified_diff(old, new, lineterm="", n=around))[2:]
    found = [("@", "") if line.startswith("@@") else (line[:1], line[1:]) for line in lines]
    return found[1:] if found[:1] == [("@", "")] else found
