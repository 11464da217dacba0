"""Sends the messages of schedules at their ticks.

Every instance whose App declares schedules has this role, and each may fire every tick: the UPDATE
compares the version of the row, so only the first one does. There is no leader that could fail. All
times are those of the database; the local clock only says how long to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any

from msgworker import schedules
from msgworker.db.database import Trouble
from msgworker.db.errors import reason_of, shows_a_row, trouble
from msgworker.errors import MsgworkerError, SchemaError
from msgworker.events import ScheduleFailed, ScheduleFired, ScheduleReplaced, ScheduleSkipped
from msgworker.instance.connections import Connections
from msgworker.instance.role import Aside, Role
from msgworker.instance.state import Setup, Shared
from msgworker.producing import Unique, checked_key
from msgworker.schedules import Schedule
from msgworker.store import schedules as store
from msgworker.store.schedules import EPOCH, Stored
from msgworker.store.send import notify

ROUNDS_AT_START = 50
LONG_PAST_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 60.0
MESSAGE = ("topic", "object_id", "payload", "catch_up")
WHEN = {"spec", "time_zone"}


@dataclass(slots=True)
class _Failing:
    """A schedule whose messages are refused: how often, and when to try again (`Setup.clock`)."""

    count: int = 0
    until: float = 0.0


class Timer(Role):
    """Fires the schedules that the App declares, and writes its declarations at the start."""

    link: Connections

    def __init__(self, setup: Setup, shared: Shared) -> None:
        super().__init__("timer", shared.log, Aside(shared.away))
        self._setup = setup
        self._shared = shared
        self.link = shared.connector.new()
        self._declared = {one.name: one for one in setup.schedules}
        self._counts = True  # how ticks overlap, see `store.is_whole`
        self._to_declare = set(self._declared)
        self._failing: dict[str, _Failing] = {}
        self._logged: set[object] = set()
        self._more = False  # there is something to do at once
        self._wait_seconds = 0.0  # until the next tick, as of the end of the round

    def register(self) -> None:
        """Write the declarations and fire what is due, before the instance looks for messages.
        Raises SchemaError if there is no table of schedules, or no column for what they send, and
        ConfigError or PayloadError if a column does not take it."""
        for one in self._declared.values():
            store.rows_of(self._setup.tables, one, [EPOCH])
        try:
            with self.link.statement() as conn:
                there = store.is_there(conn, self._setup.tables)
                self._counts = store.is_whole(conn, self._setup.tables)
            if not there:
                raise SchemaError(
                    "table msgworker_schedule is missing, which schedules need. Run "
                    "App.create_schema() or `msgworker init-db`, or see `msgworker ddl "
                    "--dialect NAME`"
                )
            for one in self._declared.values():
                if one.overlap != "allow":
                    self._check_overlap(one)
            for _ in range(ROUNDS_AT_START):
                try:
                    self.run_once()
                except Exception as error:
                    if trouble(error) is not Trouble.AGAIN:
                        raise
                    continue
                if not self._more:
                    return
        except BaseException:
            self.link.close()
            raise

    def _check_overlap(self, one: Schedule) -> None:
        """Raise SchemaError or ConfigError if its ticks cannot be kept apart."""
        asked = f'schedule {one.name} has overlap="{one.overlap}"'
        if not self._counts:
            raise SchemaError(
                f"{asked}, and table msgworker_schedule has no column overlap. Run `msgworker db "
                "upgrade`"
            )
        try:
            checked_key(store.key_of(one.name), Unique(), self._setup.tables)
        except MsgworkerError as error:
            raise type(error)(f"{asked}, which unique keys see to: {error}") from None

    def run_once(self) -> int:
        """Read the schedules and fire those that are due; returns how many."""
        with self.link.statement() as conn:
            now, found = store.look(conn, self._setup.tables, whole=self._counts)
        begun = self._setup.clock()
        self._more = False
        stored = {one.name: one for one in found}
        self._notice(stored, now)
        changed = [name for name in sorted(self._to_declare) if self._declare(name, stored, now)]
        if changed:  # they are read anew before they are fired
            self._more = True
            return 0
        fired, waits = 0, [self._setup.settings.heartbeat_seconds]
        for name in self._declared:
            row = stored.get(name)
            if row is None or row.paused_at is not None:
                continue
            failing = self._failing.get(name)
            if failing is None or failing.until <= begun:
                done, next_at = self._tried(row, now)
                fired += done
                if next_at is not None:
                    waits.append((next_at - now).total_seconds())
                failing = self._failing.get(name)
            if failing is not None and failing.until > begun:
                waits.append(failing.until - begun)
        self._wait_seconds = begun + min(waits) - self._setup.clock()
        self._more = self._more or bool(self._to_declare) or self._wait_seconds <= 0
        return fired

    def pause_seconds(self, did: int) -> float:
        return 0.0 if self._more else self._wait_seconds

    def ended(self) -> None:
        self.link.close()

    # ------------------------------------------------------------ firing

    def _tried(self, row: Stored, now: datetime) -> tuple[bool, datetime | None]:
        """Fire a schedule if it is due; an error affects this one alone. Returns whether it fired,
        and its next tick."""
        try:
            if row.next_at is None:
                raise SchemaError("its next_at is no instant")
            when = schedules.ticks_of(row.spec, row.time_zone)
            due = schedules.due(when, row.catch_up, row.next_at, row.last_at, now)
            if due is None:
                self._watch_clock(row, now)
                sent = row.next_at <= now and row.last_at  # an edit by hand has set it back
                return False, when.after(sent) if sent else row.next_at
            fired = self._fire(row, due)
        except Exception as error:
            if trouble(error) in (Trouble.LOST, Trouble.AGAIN):
                raise
            self._failed(row.name, error)
            return False, None
        self._failing.pop(row.name, None)
        if not fired:  # its row has changed: another instance has fired it
            self._more = True
        return fired, due.next_at

    def _fire(self, row: Stored, due: schedules.Due) -> bool:
        setup, shared = self._setup, self._shared
        rows = store.rows_of(setup.tables, row, due.ticks)
        with setup.tracer.sending(row.topic) as sending, self.link.transaction() as conn:
            at_most_one = row.catch_up == "one" and row.object_id is not None
            leaves_out = at_most_one and row.overlap != "replace" and bool(rows)
            skips = leaves_out and store.waits(conn, setup.tables, row)
            sending.carry(rows, setup.tables.max_headers)
            found = store.fire(
                *(conn, setup.tables, row, rows, due.ticks),
                next_at=due.next_at,
                skips=skips,
                counts=self._counts,
            )
            if found is not None and found.sent:
                notify(conn, setup.channel)
            if found is None or not found.sent:
                sending.drop()
        if found is None:
            return False
        told = (shared.identity.id, row.name, row.topic)
        if found.sent:
            setup.events.emit(ScheduleFired(*told, found.sent))
            self._shared.look_now.set()
        if found.replaced:
            setup.events.emit(ScheduleReplaced(*told, found.sent[-1], found.before))
        if found.skipped:
            setup.events.emit(ScheduleSkipped(*told, found.skipped, found.before))
        if not due.ticks and row.catch_up == "none":
            text = 'schedule %s: ticks from %s on were missed and are left out (catch_up "none")'
            self.log.info(text, row.name, _said(row.next_at))
        return True

    def _failed(self, name: str, error: BaseException) -> None:
        failing = self._failing.setdefault(name, _Failing())
        failing.count += 1
        pause = min(2.0 ** min(failing.count - 1, 20), LONGEST_PAUSE_SECONDS)
        failing.until = self._setup.clock() + pause
        event = ScheduleFailed(self._shared.identity.id, name, reason_of(error), pause)
        self._setup.events.emit(event)
        if trouble(error) is Trouble.OTHER and failing.count == 1 and not shows_a_row(error):
            self.log.debug("schedule %s", name, exc_info=error)

    def _watch_clock(self, row: Stored, now: datetime) -> None:
        if row.last_at is None or (row.last_at - now).total_seconds() < LONG_PAST_SECONDS:
            return
        text = (
            "schedule %s: the clock of the database was put back, it is %s and the tick of %s was "
            "sent; it goes on at its next tick, %s"
        )
        instants = map(_said, (now, row.last_at, row.next_at))
        self._log_once((row.name, row.version), text, row.name, *instants)

    # ------------------------------------------------------------ declaring

    def _declare(self, name: str, stored: dict[str, Stored], now: datetime) -> bool:
        """Write a declaration, if its row differs; True if the rows are to be read again. A tick
        that is due by the old times is fired first, with the message of the new declaration."""
        one, row = self._declared[name], stored.get(name)
        if row is None:
            self._insert(one, now)
            return True
        values = self._changes(one, row)
        moved = bool(values.keys() & WHEN)
        is_due = row.paused_at is None and row.next_at is not None and row.next_at <= now
        waits = moved and is_due and name not in self._failing
        if waits:
            values = {key: value for key, value in values.items() if key not in WHEN}
        else:
            self._to_declare.discard(name)
        if moved and not waits:
            last = now if row.last_at is None else max(now, row.last_at)
            values["next_at"] = schedules.ticks_of(one.spec, one.tz).after(last)
        if not values:
            return False
        self._change(one, row, values)
        return True

    def _insert(self, one: Schedule, now: datetime) -> None:
        first = schedules.ticks_of(one.spec, one.tz).after(now)
        values = self._values(one) | {"next_at": first, "declared_by": self._shared.identity.id}
        values["version"] = store.first_version(now)
        try:
            with self.link.transaction() as conn:
                store.insert(conn, self._setup.tables, values)
        except Exception as error:
            if trouble(error) is not Trouble.RACE:
                raise
            return  # another instance has just inserted it
        text = "schedule %s is new: %s (%s), topic %s; its first tick is %s"
        self.log.info(text, one.name, one.spec, one.tz, one.topic, _said(first))

    def _change(self, one: Schedule, row: Stored, values: dict[str, Any]) -> None:
        before = {key: getattr(row, key) for key in values}
        values["declared_by"] = self._shared.identity.id
        with self.link.transaction() as conn:
            changed = store.change(conn, self._setup.tables, row, values)
        if not changed:  # the row has changed meanwhile: compare again
            self._to_declare.add(one.name)
            return
        changes = "; ".join(
            f"{key}: {_said(was)} -> {_said(values[key])}" for key, was in before.items()
        )
        text = "schedule %s has changed, as this program declares it (%s): %s"
        self.log.warning(text, one.name, one.origin, changes)

    def _notice(self, stored: dict[str, Stored], now: datetime) -> None:
        """Log once how the table differs from this program."""
        for name, one in self._declared.items():
            row = stored.get(name)
            if name in self._to_declare:
                continue
            if row is None:
                text = "schedule %s was deleted from the table: it does not fire until a restart"
                self._log_once(("deleted", name), text, name)
            elif declared := self._changes(one, row):
                changes = "; ".join(
                    f"{key}: {_said(getattr(row, key))}, not {_said(value)}"
                    for key, value in declared.items()
                )
                text = (
                    "schedule %s was changed by another program (%s); it fires as in the table. A "
                    "start of this program changes it back"
                )
                self._log_once((name, changes), text, name, changes)
        for name in sorted(stored.keys() - self._declared.keys()):
            row = stored[name]
            if row.paused_at is not None or row.next_at is None:
                continue
            if (now - row.next_at).total_seconds() > LONG_PAST_SECONDS:
                text = (
                    "schedule %s is in the table, and has not fired since %s: this program does "
                    "not declare it; `msgworker schedules delete %s` removes it"
                )
                self._log_once(("undeclared", name), text, name, _said(row.next_at), quote(name))

    def _log_once(self, what: object, text: str, *values: object) -> None:
        if what not in self._logged:
            self._logged.add(what)
            self.log.warning(text, *values)

    def _values(self, one: Schedule) -> dict[str, Any]:
        """A declaration by the columns of its row."""
        keys = (*MESSAGE, "overlap") if self._counts else MESSAGE
        message = {key: getattr(one, key) for key in keys}
        return {"name": one.name, "spec": one.spec, "time_zone": one.tz, **message}

    def _changes(self, one: Schedule, row: Stored) -> dict[str, Any]:
        """What a declaration has otherwise than its row."""
        return {k: v for k, v in self._values(one).items() if v != getattr(row, k)}


def _said(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else repr(value)
