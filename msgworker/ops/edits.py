"""Edit a message that waits or is dead, in its place: conditional on what was seen, audited; and
acknowledge dead ones."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Unpack

from sqlalchemy import Connection

from msgworker import producing
from msgworker.config import whole
from msgworker.db import kind_of, read_instant, whole_number
from msgworker.errors import ConfigError
from msgworker.message import ACKNOWLEDGED, State, Status
from msgworker.ops.call import How, Repaired, Skip, Why
from msgworker.ops.operation import Step
from msgworker.ops.repairs import Repairs, WriteOptions, read_options, recorded
from msgworker.ops.selection import Action
from msgworker.payload import pretty, shown
from msgworker.queries import messages
from msgworker.store import audit, change, edits, send
from msgworker.store.audit import Edited, Who
from msgworker.store.bounded import LEAST, MOST
from msgworker.store.edits import Held
from msgworker.table import Tables


class Keep(enum.Enum):
    """Stands for a value that stays as it is, where None is a value too."""

    KEEP = "keep"


KEEP = Keep.KEEP
_WHY = {Status.PROCESSING: Why.RUNNING, Status.DONE: Why.NOT_EDITED}


def _need(t: Tables, role: str) -> None:
    """Raise ConfigError if the table has no such column."""
    if not t.has(role):
        raise ConfigError(
            f"table {t.spec.name} has no {role} column: messages have none to be edited"
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """New values of a message; None, or KEEP where None is a value, = as it is."""

    topic: str | None
    payload: Any
    available_at: datetime | Keep | None
    priority: int | None

    def params(self, t: Tables) -> dict[str, Any]:
        """As a statement takes them, by parameter; raises ConfigError or PayloadError."""
        found: dict[str, Any] = {}
        if self.topic is not None:
            producing.check_topic(self.topic)
            _need(t, "topic")
            found["b_topic"] = self.topic
        if self.payload is not KEEP:
            _need(t, "payload")
            found["b_payload"] = producing.payload_text(self.payload, t)
        if self.available_at is not KEEP:
            _need(t, "available_at")
            if self.available_at is not None:
                producing.check_at("available_at", self.available_at, t)
                found["b_at"] = self.available_at
        if self.priority is not None:
            found["b_priority"] = producing.checked_priority(self.priority, t)
        send.check_limits(t, found)
        if not found and self.available_at is not None:
            raise ConfigError("give what to edit: topic, payload, available_at or priority")
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """What an edit of a message as it is held would do: `why` it does nothing, or the changes.

    params: of the columns that change. at_once: available_at becomes NULL.
    """

    held: Held | None
    changes: tuple[Edited, ...] = ()
    params: dict[str, Any] | None = None
    at_once: bool = False
    why: Why | None = None


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
        change=_note,
        why={state: Why.NOT_DEAD for state in State if state is not State.DEAD},
        unfit=_known,
        leaves_held=True,
    )


def _note(conn: Connection, t: Tables, ids: list[int], by: Who) -> int:
    text = f"{ACKNOWLEDGED}{by.actor}: {by.reason}"
    return change.acknowledge(conn, t, ids, text=text)


def _known(conn: Connection, t: Tables, ids: list[int]) -> dict[int, Skip]:
    return {i: Skip(i, Why.KNOWN) for i in change.known(conn, t, ids)}


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
        wanted = Wanted(topic, payload, available_at, priority)
        params = wanted.params(t)
        with self._reading() as (conn, t):
            plan = _planned(conn, t, msg_id, wanted, params, seen)
        if plan.why is not None:
            return _skipped(msg_id, plan.why, dry_run=dry_run)
        assert plan.held is not None
        before = plan.held.seen
        if dry_run:
            info = self._read(messages.show, msg_id)
            sample = () if info is None else (replace(info, payload=None),)
            return Repaired(
                kind="edit",
                matched=1,
                changed=1,
                dry_run=True,
                sample=sample,
                changes=plan.changes,
                seen=before,
            )
        self._ready()
        asked = {"ids": [msg_id], audit.CHANGES: audit.kept_changes(plan.changes)}
        op = self._operation("edit", by, asked)
        op.over([msg_id], lambda op_id, ids, conn: _once(conn, t, op_id, msg_id, plan, before))
        done = op.end()
        return replace(done, changes=plan.changes if done.changed else (), seen=before)

    def acknowledge(
        self,
        ids: Iterable[int] | int | None = None,
        **options: Unpack[WriteOptions],
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
        asked = read_options("acknowledge", ids, options)
        return self._write("acknowledge", lambda _: _acknowledge(self._tables), asked)


def _skipped(msg_id: int, why: Why, *, dry_run: bool) -> Repaired:
    return Repaired(
        kind="edit",
        matched=1,
        skipped=1,
        dry_run=dry_run,
        why=((why, 1),),
        skips=(Skip(msg_id, why),),
    )


def _planned(
    conn: Connection,
    t: Tables,
    msg_id: int,
    wanted: Wanted,
    params: dict[str, Any],
    seen: str | None,
) -> Plan:
    """What an edit would do with the message as it is now."""
    held = edits.read(conn, t, msg_id)
    if held is None:
        return Plan(None, why=Why.NOT_THERE)
    if held.status not in (Status.NEW, Status.FAILED):
        return Plan(held, why=_WHY.get(held.status, Why.UNKNOWN))
    if seen is not None and held.seen != seen:
        return Plan(held, why=Why.EDITED)
    if wanted.available_at is not KEEP and _is_dead(t, held):
        raise ConfigError(
            f"message {msg_id} is dead and waits for no instant: rerun it, then edit available_at"
        )
    changes = tuple(_changes(t, held, wanted, params))
    changed = {one.column for one in changes}
    if not changes:
        return Plan(held, why=Why.SAME)
    if _is_ahead(conn, t, msg_id, held, changed):
        return Plan(held, why=Why.AHEAD)
    kept = {name: value for name, value in params.items() if _COLUMNS[name] in changed}
    at_once = "available_at" in changed and wanted.available_at is None
    return Plan(held, changes, kept, at_once)


def _once(conn: Connection, t: Tables, op_id: int, msg_id: int, plan: Plan, before: str) -> Step:
    """The edit, in the transaction of its step: only of a message that is still as it was."""
    held = edits.read(conn, t, msg_id, lock=True)
    assert plan.params is not None
    if held is None:
        return Step(1, 0, [Skip(msg_id, Why.NOT_THERE)])
    if held.status not in (Status.NEW, Status.FAILED):
        return Step(1, 0, [Skip(msg_id, _WHY.get(held.status, Why.UNKNOWN))])
    if held.seen != before:
        return Step(1, 0, [Skip(msg_id, Why.EDITED)])
    if _is_ahead(conn, t, msg_id, held, {one.column for one in plan.changes}):
        return Step(1, 0, [Skip(msg_id, Why.AHEAD)])
    params, at_once = plan.params, plan.at_once

    def write(conn: Connection, t: Tables, ids: list[int]) -> int:
        return edits.write(conn, t, msg_id, held, params, at_once=at_once)

    recorded(conn, t, op_id, [msg_id], write)
    return Step(1, 1)


def _is_dead(t: Tables, held: Held) -> bool:
    tries = whole_number(held.tries)
    return held.status == Status.FAILED and (tries is None or tries >= t.spec.max_tries)


def _is_ahead(conn: Connection, t: Tables, msg_id: int, held: Held, changed: set[str]) -> bool:
    """Whether an instance may hold it as it was, and start it so if it is rerun: it was given up
    while it waited behind a message that still runs."""
    if not changed & {"topic", "payload"} or held.object_id is None:
        return False
    return _is_dead(t, held) and held.given_up and edits.object_runs(conn, t, msg_id)


_COLUMNS = {
    "b_topic": "topic",
    "b_payload": "payload",
    "b_at": "available_at",
    "b_priority": "priority",
}


def _changes(t: Tables, held: Held, wanted: Wanted, params: dict[str, Any]) -> list[Edited]:
    """What differs."""
    found = []
    if "b_topic" in params and (held.topic is None or params["b_topic"] != held.topic):
        found.append(Edited("topic", _text(held.topic), params["b_topic"]))
    if "b_payload" in params and not _same_json(held, params["b_payload"]):
        old = held.payload if held.length is None else f"(too long: {held.length} characters)"
        found.append(Edited("payload", _text(old), params["b_payload"]))
    if wanted.available_at is not KEEP:
        old_at = _instant(t, held.available_at)
        if wanted.available_at != old_at or (old_at is None and held.available_at is not None):
            raw = _text(held.available_at)
            was = raw if old_at is None else old_at.isoformat()
            new = None if wanted.available_at is None else _iso(wanted.available_at)
            found.append(Edited("available_at", was, new))
    if "b_priority" in params and whole_number(held.priority) != params["b_priority"]:
        number = whole_number(held.priority)
        old = _text(held.priority) if number is None else number
        found.append(Edited("priority", old, params["b_priority"]))
    return found


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


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
    return json.dumps(json.loads(text, parse_float=_digits), sort_keys=True)


def _digits(text: str) -> dict[str, list[Any]]:
    """A number as sign, digits without zeros at the end, and exponent."""
    sign, digits, exponent = Decimal(text).as_tuple()
    written = "".join(map(str, digits)).lstrip("0")
    kept = written.rstrip("0")
    power = int(exponent) + len(written) - len(kept) if kept else 0
    return {"number": [sign, kept, power]}


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
