"""Rerun, discard and release messages: conditional, in short transactions, audited."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.errors import ConfigError, MsgworkerError, SchemaError
from msgworker.message import State, StateName
from msgworker.ops import call, release, steps
from msgworker.ops.call import Call, Who
from msgworker.ops.operation import Bulk
from msgworker.ops.results import Repaired, Skip, Skips, Tell, renamed
from msgworker.ops.selection import SAMPLE, Choice, Count, Counted
from msgworker.queries import messages
from msgworker.schema import create
from msgworker.store import audit, cancels, change, history, limits, selection
from msgworker.store.audit import Operation

# --- Shared parts of all writes: the audit tables, dry runs, resuming after an interruption.

LOOK_AHEAD_SECONDS = 20
W = TypeVar("W", bound="Writing")


class Writing(Call):
    """Helpers of the writes."""

    _actor: str | None = None
    _source: str | None = None
    _key: str | None = None
    _request: str | None = None

    def acting(
        self: W,
        *,
        actor: str | None = None,
        source: str | None = None,
        key: str | None = None,
        request: str | None = None,
    ) -> W:
        """The same calls, whose writes are recorded in the audit as of this actor, where the call
        names none, and from this source, such as "web 10.0.0.7" (at most 200 characters each).

        key: of this request, 1 to 100 letters, digits and any of .:_-. The database takes it once:
        another write with it raises KeyUsed and does nothing, and `recorded` finds the operation
        that has it. request: what is asked, such as its digest, for who finds it there (as long).
        Raises ConfigError.
        """
        by = call.who(actor, None, source=source)
        other = copy.copy(self)
        other._actor, other._source = None if actor is None else by.actor, by.source
        other._key = None if key is None else call.key_of(key)
        other._request = None if request is None else call.key_of(request)
        return other

    def recorded(self, key: str) -> Operation | None:
        """The operation that was recorded with this key, see `acting`; None if there is none."""
        call.key_of(key)
        self._ready()
        with self._reading() as (conn, t):
            return audit.with_key(conn, t, key)

    def operation(self, op_id: int) -> Operation | None:
        """An operation as it is now, also while it runs; None if there is none of this number."""
        call.ids_of(op_id)
        self._ready()
        with self._reading() as (conn, t):
            return audit.read(conn, t, op_id)

    def note_sent(
        self,
        conn: Connection,
        msg_id: int,
        *,
        topic: str,
        actor: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Record in the audit that this message was sent by an operator, in the caller's
        transaction; return the op_id."""
        by, t = self._who(actor, reason), self._tables
        self._ready()
        asked = {"ids": [msg_id], "topic": topic}
        return audit.begin(conn, t, kind="send", **by.fields, asked=asked, done_to=msg_id)

    def _who(
        self, actor: str | None, reason: str | None, *, needs_reason: str | None = None
    ) -> Who:
        given = self._actor if actor is None else actor
        return call.who(
            given,
            reason,
            source=self._source,
            key=self._key,
            request=self._request,
            needs_reason=needs_reason,
        )

    def _ready(self) -> None:
        """Raise SchemaError if the tables of ops are missing."""
        if not self._tables.missing:
            return
        missing = create.missing_tables(self._engine, self._tables)
        needed = missing - {cancels.NAME, limits.NAME, history.NAME}  # only for who uses them
        if needed:
            raise SchemaError(
                f"table {', '.join(sorted(needed))} is missing, which records operations. "
                "Run App.create_schema() or `msgworker init-db`, or see `msgworker ddl`"
            )
        self._found = replace(self._tables, missing=missing)  # created since this App read it

    def _resumed(self, kind: str, op_id: int, asked: dict[str, Any]) -> Operation:
        """An interrupted operation to continue; raises ConfigError if it does not exist, or had
        other ids than those given again."""
        ids = asked.get("ids")
        others = [value for name, value in asked.items() if name != "ids"]
        if any(value is not None and value is not False for value in others):
            raise ConfigError("operation continues with the original selection; give no other one")
        self._ready()
        call.ids_of(op_id)
        with self._reading() as (conn, t):
            op = audit.read(conn, t, op_id)
        if op is None or op.kind != kind:
            raise ConfigError(f"there is no {kind} of number {op_id}; see `msgworker audit`")
        if op.finished_at is not None:
            raise ConfigError(f"{kind} {op_id} is over: {plural(op.changed, 'message')} changed")
        if ids is None and "ids_count" in op.filter:
            raise ConfigError(
                f"{kind} {op_id} was of {op.filter['ids_count']} ids, which were not stored; give "
                "the same ids again with operation: it continues after those that are done"
            )
        again = {} if ids is None else call.kept(ids)
        if any(op.filter.get(name) != value for name, value in again.items()):
            raise ConfigError(f"these are not the ids of {kind} {op_id}; give the same ones")
        return op

    def _bulk(
        self,
        kind: str,
        by: Who,
        asked: dict[str, Any],
        op: Operation | None,
        pace: dict[str, Any],
    ) -> Bulk:
        if op is not None:
            return Bulk(self._engine, self._tables, op, **pace)
        kept = {k: v for k, v in asked.items() if v is not None and v is not False}
        if kept.get("ids") is not None:
            kept |= call.kept(kept.pop("ids"))
        return Bulk.begun(self._engine, self._tables, kind, by, kept, **pace)

    def _change(
        self,
        kind: str,
        choice: Choice,
        asked: dict[str, Any],
        by: Who,
        op: Operation | None,
        count: Count,
        pace: dict[str, Any],
        act: steps.Change,
    ) -> Repaired:
        if count.before(op):
            timed = replace(choice, clock=self._clock)
            would = Counted.of(timed, count, None if count.dry_run else pace["progress"])
            count.check(kind, would.changed, complete=would.complete)
            if count.dry_run:
                return self._told(kind, would)
        self._ready()
        if pace["rate"] is not None:  # pages that are read ahead must not become stale
            ahead = int(pace["rate"] * LOOK_AHEAD_SECONDS)
            choice = replace(choice, chunk_size=max(1, min(choice.chunk_size, ahead)))
        bulk: Bulk | None = None if op is None else self._bulk(kind, by, asked, op, pace)
        for chunk in choice.chunks(None if op is None else op.last_id):
            bulk = bulk or self._bulk(kind, by, asked, None, pace)
            steps.change_chunk(bulk, choice, chunk, act)
        if bulk is None:
            return Repaired(kind=kind)
        bulk.finish()
        return bulk.result()

    def _told(self, kind: str, would: Counted) -> Repaired:
        """The result of a dry run that has counted."""
        return replace(
            self._would(kind, would.first, would.matched, []),
            changed=would.changed,
            skipped=would.matched - would.changed,
            why=would.skips.why,
            skips=tuple(would.skips.first),
            done_again=would.done,
            requested=would.running,
            complete=would.complete,
            up_to=would.up_to,
        )

    def _would(self, kind: str, ids: list[int], matched: int, left: list[Skip]) -> Repaired:
        """The result of a dry run: how many of `ids`, and the first of them."""
        skips = Skips()
        skips.add(left)
        with self._reading() as (conn, t):
            shown = [messages.show(conn, t, i) for i in ids[:SAMPLE]]
            infos = messages.with_endings(conn, t, [info for info in shown if info is not None])
        return Repaired(
            kind=kind,
            matched=matched,
            changed=len(ids),
            skipped=len(left),
            dry_run=True,
            why=skips.why,
            skips=tuple(skips.first),
            sample=tuple(replace(info, payload=None) for info in infos),
        )

    @staticmethod
    def _nothing(kind: str, left: list[Skip]) -> Repaired:
        skips = Skips()
        skips.add(left)
        return Repaired(
            kind=kind,
            matched=len(left),
            skipped=len(left),
            why=skips.why,
            skips=tuple(skips.first),
        )


# --- Rerun, discard and release messages: conditional, in short transactions, audited.

_RERUN = (State.FAILED, State.DEAD)
_OPEN = (State.NEW, State.FAILED, State.DEAD)


class Repairs(Writing):
    """Writes to the table.

    Every write takes `actor` (default: this user and host), `reason`, and `dry_run`, which only
    counts; the audit records what it did. As a number, its result is how many messages it
    changed. Raises ConfigError before anything is done, SchemaError if tables are missing.
    """

    # ------------------------------------------------------------ rerun

    @renamed(resume="operation")
    def rerun(
        self,
        ids: Iterable[int] | int | None = None,
        *,
        status: StateName | State | None = None,
        topic: str | None = None,
        object_id: Any = None,
        error: str | None = None,
        since: datetime | None = None,
        fingerprint: str | None = None,
        up_to: int | None = None,
        force: bool = False,
        with_successors: bool = False,
        also_done: bool = False,
        dry_run: bool = False,
        count_limit: int | None = None,
        expected_count: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        rate: float | None = None,
        operation: int | None = None,
        progress: Tell | None = None,
    ) -> Repaired:
        """Try failed or dead messages again, with their tries set to 0.

        By ids, or by the filters of `find` and the group of `failures` (fingerprint): dead ones, if
        no status is given, without discarded ones (unless error or fingerprint select
        them). Never new and running messages; done ones only with force.

        A message is skipped if a later one of its object is done or running, or if another one
        holds its unique key by now, unless force; then it runs without that key. with_successors:
        the message and the failed or dead ones behind it are set to new, in one transaction per
        object, so that they run again in order; done ones behind it stay done, unless also_done. If
        one of them runs, all are skipped.

        up_to: only messages with this msg_id or a lower one; with filters. count_limit: a dry run
        stops when it has read so many; its `complete` is False then. It can be confirmed in two
        ways: with its `up_to` and `changed` (as expected_count), for the messages that it counted;
        without both, for all of the selection. A dry run with_successors counts all or nothing.

        expected_count: as many as a dry run said would be changed; if it would be another number
        by now, SelectionChanged is raised and nothing is done. Messages that match only later may
        still be changed, if there is no up_to. With a dry run that stops at its limit or its time,
        it is raised only if more than expected are found by then.

        rate: the most messages a second. operation: the op_id of an interrupted one to continue;
        nothing is changed or counted twice. More than 10,000 ids are not stored: give them again
        with it. progress: called after each transaction.
        """
        chosen = {
            "status": status,
            "topic": topic,
            "object_id": object_id,
            "error": error,
            "since": since,
            "fingerprint": fingerprint,
            "up_to": up_to,
        }
        asked = {"ids": call.ids_of(ids)} | chosen
        asked |= {"force": force, "with_successors": with_successors, "also_done": also_done}
        by = self._who(actor, reason)
        op = self._resumed("rerun", operation, asked) if operation is not None else None
        asked = asked if op is None else call.again(op, asked["ids"])
        choice = self._to_rerun(**asked)
        count = Count(dry_run, count_limit, expected_count)
        if not dry_run:
            self._ready()
            choice = replace(choice, tables=self._tables)  # with what was created since
        pace = {"rate": call.rate_of(rate), "progress": progress}
        if asked["with_successors"]:
            return self._rerun_objects(choice, asked, by, op, count, pace)
        done_too = bool(asked["force"])

        def act(conn: Connection, part: list[int]) -> int:
            return change.rerun(conn, choice.tables, part, done_too=done_too)

        return self._change("rerun", choice, asked, by, op, count, pace, act)

    def _to_rerun(
        self,
        ids: list[int] | None,
        force: bool,
        with_successors: bool,
        also_done: bool,
        status: StateName | State | None,
        **filters: Any,
    ) -> Choice:
        if also_done and not with_successors:
            raise ConfigError(
                "also_done (--also-done) concerns done messages behind the others; give "
                "with_successors (--with-successors) too"
            )
        one = call.word(status, (*_RERUN, State.DONE), "are not rerun: they have yet to run")
        if one is State.DONE and not force:
            raise ConfigError("messages that are done are rerun only with --force (force=True)")
        words = (*_RERUN, State.DONE) if force else _RERUN
        order = not force and not with_successors
        wanted = None
        if ids is not None:
            call.not_both(filters | {"status": status})
        else:
            named = filters.get("error") is not None or filters.get("fingerprint") is not None
            wanted = call.filter_of((one or State.DEAD,), given_up=named, **filters)
        return Choice(
            engine=self._engine,
            tables=self._tables,
            words=words,
            ids=ids,
            wanted=wanted,
            in_order=order,
            key_taken="without" if force else "skip",
        )

    def _rerun_objects(
        self,
        choice: Choice,
        asked: dict[str, Any],
        by: Who,
        op: Operation | None,
        count: Count,
        pace: dict[str, Any],
    ) -> Repaired:
        also_done = bool(asked["also_done"])
        if count.before(op):
            timed = replace(choice, clock=self._clock)
            found = steps.would(timed, also_done=also_done)
            count.check("rerun", len(found.ids))
        if count.dry_run:
            return replace(
                self._would("rerun", sorted(found.ids), found.matched, []),
                skipped=found.skips.count,
                why=found.skips.why,
                skips=tuple(found.skips.first),
                done_again=len(found.done),
                stay_done=found.stay_done,
                complete=found.complete,
            )
        self._ready()
        bulk: Bulk | None = None if op is None else self._bulk("rerun", by, asked, op, pace)
        for chunk in choice.chunks(None if op is None else op.last_id):
            tails = steps.Tails.of(choice, chunk, also_done=also_done)
            bulk = bulk or self._bulk("rerun", by, asked, None, pace)
            steps.rerun_with_behind(bulk, choice, chunk, tails, also_done=also_done)
        if bulk is None:
            return Repaired(kind="rerun")
        bulk.finish()
        return bulk.result()

    # ------------------------------------------------------------ discard

    @renamed(resume="operation")
    def discard(
        self,
        ids: Iterable[int] | int | None = None,
        *,
        reason: str | None = None,
        status: StateName | State | None = None,
        topic: str | None = None,
        object_id: Any = None,
        error: str | None = None,
        since: datetime | None = None,
        fingerprint: str | None = None,
        up_to: int | None = None,
        dry_run: bool = False,
        count_limit: int | None = None,
        expected_count: int | None = None,
        actor: str | None = None,
        rate: float | None = None,
        operation: int | None = None,
        progress: Tell | None = None,
    ) -> Repaired:
        """Give up messages: dead, with the reason as their last error; their object continues.

        By ids, or by at least one filter. New, failed and dead ones; never running ones (release
        their instance first) or done ones. A filter without a status selects unfinished messages.
        A reason is required. up_to, count_limit, expected_count, rate, operation, progress: as in
        `rerun`.
        """
        chosen = {
            "status": status,
            "topic": topic,
            "object_id": object_id,
            "error": error,
            "since": since,
            "fingerprint": fingerprint,
            "up_to": up_to,
        }
        asked = {"ids": call.ids_of(ids)} | chosen
        op = self._resumed("discard", operation, asked) if operation is not None else None
        asked = asked if op is None else call.again(op, asked["ids"])
        if op is not None:
            by = Who(op.actor, op.reason, op.source)
        else:
            by = self._who(actor, reason, needs_reason=None if dry_run else "discard")
        choice = self._to_discard(**asked)
        count = Count(dry_run, count_limit, expected_count)
        pace = {"rate": call.rate_of(rate), "progress": progress}
        text = f"{selection.DISCARDED}{by.actor}: {by.reason}"

        def act(conn: Connection, part: list[int]) -> int:
            return change.discard(conn, choice.tables, part, text=text)

        return self._change("discard", choice, asked, by, op, count, pace, act)

    def _to_discard(
        self, ids: list[int] | None, status: StateName | State | None, **filters: Any
    ) -> Choice:
        one = call.word(
            status, _OPEN, "cannot be discarded: running ones belong to an instance, see release"
        )
        wanted = None
        if ids is not None:
            call.not_both(filters | {"status": status})
        else:
            wanted = call.filter_of(self._given_up_words(one, filters), given_up=False, **filters)
        return Choice(
            engine=self._engine,
            tables=self._tables,
            words=_OPEN,
            ids=ids,
            wanted=wanted,
            given_up=False,
        )

    def _given_up_words(self, one: State | None, filters: dict[str, Any]) -> tuple[State, ...]:
        if one is not None:
            return (one,)
        if call.none_of(filters):
            raise ConfigError("discard needs ids or a filter: it does not discard all messages")
        # A dead message that holds nothing back has been given up already.
        return _OPEN if self._tables.spec.on_dead == "block" else (State.NEW, State.FAILED)

    # ------------------------------------------------------------ release

    def release(
        self,
        instance: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        progress: Tell | None = None,
    ) -> Repaired:
        """Give back the messages of a dead instance, with a try counted for each, as recovery does.

        A live instance needs force: its lease is taken over, and its messages are given back when
        it can no longer start handlers, which takes as long as its lease; its later writes are
        refused. Messages locked by other transactions are skipped and left to recovery. Raises
        MsgworkerError if it is alive or is being recovered.
        """
        by = self._who(actor, reason)
        t = self._tables
        held = release.held_by(self._clock, self._engine, t, instance)
        release.refuse_living(held, force)
        if dry_run:
            return self._would("release", held.ids, len(held.ids), [])
        self._ready()
        if held.lease is None and not held.ids:
            return self._nothing("release", [])
        asked = {"instance": instance, "force": force, "lived": held.lives}
        bulk = self._bulk("release", by, asked, None, {"progress": progress})
        try:
            me = release.take_over(self._engine, t, held)
        except MsgworkerError:  # another process was faster: end the recorded operation
            bulk.finish()
            raise
        all_free = release.give_back(bulk, t, held, by)
        release.end(self._engine, t, held, me, drop=all_free)
        bulk.finish()
        return bulk.result()

    def release_nobody(
        self,
        older_than: float | str | timedelta | datetime | None = None,
        *,
        any_age: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        progress: Tell | None = None,
    ) -> Repaired:
        """Give back messages at 1 without an owner: left by a foreign consumer that no longer runs,
        or from before the table was adopted.

        A try and a crash are counted for each, as in recovery: it may have killed its process.
        older_than: seconds, "1h", a timedelta, or an aware datetime in the past; by `claimed_at`,
        else by `created_at`. Neither records when a foreign consumer flagged a message, only the
        earliest possible time: a consumer that is only slow is not excluded. Messages with neither
        are skipped. any_age: of any age, known or not. On a
        table without `claimed_by` it means every message at 1, and MsgworkerError is raised
        while an instance is alive. Raises ConfigError for a wrong age.
        """
        by = self._who(actor, reason)
        t = self._tables
        before = release.before_of(self._engine, t, older_than, any_age)
        release.refuse_owners_unknown(self._engine, t)
        seen = release.held_by_nobody(self._engine, t, before)
        undated = release.of_unknown_age(self._engine, t, before)
        if dry_run:
            return self._would("release", seen, len(seen) + len(undated), undated)
        self._ready()
        if not seen:
            return self._nothing("release", undated)
        asked = {"nobody": True, "before": None if before is None else before.isoformat()}
        bulk = self._bulk("release", by, asked, None, {"progress": progress})
        release.give_back_nobodys(bulk, self._engine, t, before, by)
        release.leave_alone(bulk, undated)
        bulk.finish()
        return bulk.result()
