"""Rerun, discard and cancel messages: conditional, in short transactions, audited."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Unpack

from sqlalchemy import Connection

from msgworker.config.values import renamed
from msgworker.errors import ConfigError, TookTooLong
from msgworker.message import DISCARDED, State, Status
from msgworker.ops.looks import Filters, options_of
from msgworker.ops.operation import Step, TooMany, Work, Writing, check_all
from msgworker.ops.results import How, OnProgress, Repaired, Skip, Why, ids_of, rate_of
from msgworker.ops.selection import WHY, Action, DryRun, Options, Page, Selection
from msgworker.store import audit, change, controls
from msgworker.store.audit import Who
from msgworker.store.change import SeenRow
from msgworker.table.build import AUDIT, CANCEL, OPERATION
from msgworker.table.tables import Tables

LOOK_AHEAD_SECONDS = 20
MOST_BEHIND = 10_000
"""Messages of several objects that one transaction reruns; those of one object, all of them."""
NOT_DONE = (State.FAILED, State.DEAD)

# --- What may be changed, and how: one declaration for each kind of write.


def _rerun(asked: Options) -> Action:
    if asked.also_done and not asked.with_successors:
        raise ConfigError(
            "also_done (--also-done) concerns done messages behind the others; give "
            "with_successors (--with-successors) too"
        )
    if asked.status == State.DONE and not asked.force:
        raise ConfigError("messages that are done are rerun only with --force (force=True)")
    forced = bool(asked.force)
    return Action(
        kind="rerun",
        may=(*NOT_DONE, State.DONE) if forced else NOT_DONE,
        statuses=(*NOT_DONE, State.DONE),
        refused="are not rerun: they have yet to run",
        chosen=(State.DEAD,),
        chooses_given_up=asked.error is not None or asked.fingerprint is not None,
        needs_filter=False,
        needs_reason=False,
        change=lambda conn, t, ids, by: change.rerun(conn, t, ids, done_too=forced),
        in_order=not forced and not asked.with_successors,
        unfit=_read_ahead,
        key_taken="without" if forced else "skip",
    )


def _read_ahead(conn: Connection, t: Tables, ids: list[int]) -> dict[int, Skip]:
    """Those that an instance may hold as they were before an edit, and would start so."""
    if {OPERATION.name, AUDIT.name} & t.missing:
        return {}
    away = change.given_up(conn, t, ids)
    return {i: Skip(i, Why.AHEAD) for i in (change.read_ahead(conn, t, away) if away else ())}


def _discard(t: Tables) -> Action:
    unfinished = (State.NEW, State.FAILED)
    return Action(
        kind="discard",
        may=(*unfinished, State.DEAD),
        statuses=(*unfinished, State.DEAD),
        refused="cannot be discarded: cancel those that run",
        # A dead message that holds nothing back has been discarded already.
        chosen=(*unfinished, State.DEAD) if t.spec.on_dead == "block" else unfinished,
        chooses_given_up=False,
        change=lambda conn, t, ids, by: change.discard(
            conn, t, ids, text=f"{DISCARDED}{by.actor}: {by.reason}"
        ),
        why={**WHY, State.DONE: Why.ENDED},
        given_up=False,
    )


def _cannot_cancel(conn: Connection, t: Tables, ids: list[int]) -> dict[int, Skip]:
    """The running ones among the messages for which no request can be made."""
    running = controls.running(conn, t, ids)
    asked = controls.requests(conn, t, list(running)) if running else []
    found = {one.request.msg_id for one in asked if not one.over}
    skips = {}
    for msg_id, (owner, _) in running.items():
        if owner is None:
            skips[msg_id] = Skip(msg_id, Why.FOREIGN)
        elif not CANCEL.is_there(t):
            skips[msg_id] = Skip(msg_id, Why.NO_REQUESTS)
        elif msg_id in found:
            skips[msg_id] = Skip(msg_id, Why.REQUESTED)
    return skips


_OPEN = (State.NEW, State.FAILED, State.PROCESSING)
_CANCEL = Action(
    kind="cancel",
    may=_OPEN,
    statuses=_OPEN,
    refused="cannot be cancelled: they have ended",
    chosen=_OPEN,
    change=lambda conn, t, ids, by: change.cancel_or_request(
        conn, t, ids, actor=by.actor, reason=by.reason or ""
    ),
    why={**WHY, State.DONE: Why.TOO_LATE, State.DEAD: Why.TOO_LATE},
    unfit=_cannot_cancel,
)


class WriteOptions(Filters, How, total=False):
    """How messages are chosen, and how they are changed: the options of `Repairs.rerun` that every
    write on messages has. fingerprint: of a group of `failures`."""

    fingerprint: str | None
    up_to: int | None
    count_limit: int | None
    expected_count: int | None
    rate: float | None
    operation: int | None
    progress: OnProgress | None


class Repairs(Writing):
    """Writes to the table.

    Every write takes `dry_run`, `actor` and `reason` (`How`); the audit records what it did. As a
    number, its result is how many messages it changed. Raises ConfigError before anything is done,
    SchemaError if tables are missing.
    """

    @renamed(resume="operation")
    def rerun(
        self,
        ids: Iterable[int] | int | None = None,
        *,
        force: bool = False,
        with_successors: bool = False,
        also_done: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Repaired:
        """Try failed or dead messages again, with their tries set to 0.

        By ids, or by the filters of `find` and the group of `failures` (fingerprint): dead ones, if
        no status is given, without discarded ones (unless error or fingerprint select
        them). acknowledged: False = only those that no operator has acknowledged. job: those of a
        job. Never new and running messages; done ones only with force.

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
        order = {"force": force, "with_successors": with_successors, "also_done": also_done}
        return self._write("rerun", _rerun, ids, options, **order)

    @renamed(resume="operation")
    def discard(
        self, ids: Iterable[int] | int | None = None, **options: Unpack[WriteOptions]
    ) -> Repaired:
        """Make messages dead, with the reason as their last error; their object continues.

        By ids, or by at least one filter. New, failed and dead ones; never running ones (cancel
        them) or done ones. A filter without a status selects unfinished messages.
        A reason is required. up_to, count_limit, expected_count, rate, operation, progress: as in
        `rerun`.
        """
        return self._write("discard", lambda _: _discard(self._tables), ids, options)

    @renamed(resume="operation")
    def cancel(
        self, ids: Iterable[int] | int | None = None, **options: Unpack[WriteOptions]
    ) -> Repaired:
        """Cancel messages: dead, with the reason as their last error; their object continues.

        By ids, or by at least one filter; a filter without a status selects new, failed and running
        ones. New and failed ones are dead at once. For a running one a request is recorded
        (`requested` counts them): its instance sets `ctx.cancelled` within a heartbeat, and if the
        handler then raises or returns, the message is dead; a transaction of the handler is
        rolled back, an async handler is cancelled. If it ends before that, it was too late; if it
        fails or is released, it is dead instead of being tried again.

        Skipped: what has ended, and what a foreign consumer has flagged. A reason is required.
        up_to, count_limit, expected_count, rate, operation, progress: as in `rerun`.
        """
        self._tables_with(CANCEL)
        return self._write("cancel", lambda _: _CANCEL, ids, options)

    def _write(
        self,
        kind: audit.Kind,
        action_of: Callable[[Options], Action],
        ids: Iterable[int] | int | None,
        options: WriteOptions,
        **order: Any,
    ) -> Repaired:
        """Do it, or count what it would change. Raises TypeError for an unknown option."""
        asked = Options(ids=ids_of(ids), **options_of(kind, options, WriteOptions), **order)
        interrupted = None
        if asked.operation is not None:
            interrupted = self._resumed(kind, asked.operation, asked.given)
            asked = asked.again(interrupted)
        action = action_of(asked)
        if interrupted is not None:
            by = Who(interrupted.actor, interrupted.reason)
        else:
            needs = kind if action.needs_reason and not asked.dry_run else None
            by = self._who(asked.actor, asked.reason, needs_reason=needs)
        wanted = asked.filter(action)
        selection = Selection(
            engine=self._engine,
            tables=self._tables,
            action=action,
            ids=asked.ids,
            wanted=None if wanted is None else self._with_object(wanted),
        )
        rate = rate_of(asked.rate)
        if asked.dry_run or (asked.expected_count is not None and interrupted is None):
            timed = replace(selection, clock=self._clock)
            if asked.with_successors:
                would = _would_with_successors(timed, also_done=asked.also_done)
            else:
                would = DryRun.of(timed, asked)
            asked.check(kind, would)
            if asked.dry_run:
                return self._counted(kind, would)
        self._ready()
        selection = replace(selection, tables=self._tables)  # with what was created since
        if rate is not None:  # pages that are read ahead must not become stale
            ahead = max(1, int(rate * LOOK_AHEAD_SECONDS))
            selection = replace(selection, page_size=min(selection.page_size, ahead))
        op = self._operation(kind, by, asked.given, interrupted, rate=rate, progress=asked.progress)
        for page in selection.pages(op.last_id):
            if asked.with_successors:
                work = _with_successors(selection, page, also_done=asked.also_done)
            else:
                work = _alone(selection, page, by)
            op.over(page.ids, work)
        done = op.end()
        if done.op_id is None or State.PROCESSING not in action.may:
            return done
        return replace(done, requested=self._read(audit.running_before, done.op_id))


# --- What a transaction does with the messages of a page.


def _alone(selection: Selection, page: Page, by: Who) -> Work:
    """Change each of them, whatever is behind it."""

    def work(op_id: int, part: list[int], conn: Connection) -> Step:
        left = [page.skips[i] for i in part if i in page.skips]
        ids, gone = selection.lock(conn, [i for i in part if i not in page.skips])
        late: dict[int, Skip] = {}
        if page.behind is not None and ids:
            late = selection.overtaken(conn, ids, page.behind)
            ids = [i for i in ids if i not in late]
        if selection.action.key_taken is not None and (taken := selection.free_keys(conn, ids)):
            late |= taken
            ids = [i for i in ids if i not in taken]
        write = selection.action.change
        recorded(conn, selection.tables, op_id, ids, lambda c, t, some: write(c, t, some, by))
        return Step(len(part), len(ids), [*left, *gone, *late.values()])

    return work


def recorded(
    conn: Connection,
    t: Tables,
    op_id: int,
    ids: Sequence[int],
    act: Callable[[Connection, Tables, list[int]], int],
) -> None:
    """Record locked rows, then change them."""
    for some in t.portions(ids):
        kept, changed = audit.record(conn, t, op_id, some), act(conn, t, some)
        check_all(len(some), recorded=kept, changed=changed)


# --- Reruns with those behind.


@dataclass(slots=True)
class Tails:
    """Chosen messages, and those behind them when they were read.

    first: of each chosen one, the lowest chosen one of its object. rows: under that one, those of
    the object behind it, by msg_id; done ones only if they may be rerun. stay_done: how many done
    ones behind them stay so; complete: those were all counted.
    """

    first: dict[int, int] = field(default_factory=dict)
    rows: dict[int, list[SeenRow]] = field(default_factory=dict)
    stay_done: int = 0
    complete: bool = True

    @classmethod
    def of(
        cls, selection: Selection, page: Page, *, also_done: bool, counts: bool = False
    ) -> Tails:
        """Those of a page. counts: count those that stay done. The done ones are in no index of
        ours: the walk is ended after ORDER_SECONDS, and raises TookTooLong if it has to be known
        which they are."""
        found, t = cls(), selection.tables
        heads = [i for i in page.ids if i not in page.skips]
        with selection.clock.reading(selection.engine) as conn:
            for some in t.portions(heads):
                selection.clock.check()
                found.first |= change.lowest(conn, t, some)
                found.rows |= change.not_done_behind(conn, t, some)
        named = State.DONE in selection.action.may
        if also_done or named or counts:
            try:
                found._add_done(selection, heads, also_done=also_done, named=named)
            except TookTooLong as error:
                if selection.clock.seconds is not None:
                    raise
                if also_done or named:
                    advice = selection.advice(
                        heads,
                        "What is done behind a message of its object is found fast, of one object",
                        "alone, without --with-successors",
                    )
                    raise TookTooLong(error.seconds, advice) from error
                found.complete = False
        return found

    def _add_done(
        self, selection: Selection, heads: list[int], *, also_done: bool, named: bool
    ) -> None:
        t, clock = selection.tables, selection.in_order_seconds
        with clock.reading(selection.engine) as conn:
            for some in t.portions(heads):
                clock.check()
                lows = sorted({self.first[i] for i in some})
                for low, rows in change.done_behind(conn, t, lows).items():
                    again = rows if also_done else _named(conn, selection, rows) if named else []
                    self.stay_done += len(rows) - len(again)
                    self.rows[low] = sorted([*self.rows.get(low, []), *again])

    def behind(self, head: int) -> list[SeenRow]:
        """What stands behind a chosen message."""
        rows = self.rows.get(self.first[head], [])
        return rows[bisect_right(rows, head, key=attrgetter("msg_id")) :]


def _named(conn: Connection, selection: Selection, rows: list[SeenRow]) -> list[SeenRow]:
    """Those of the done messages that are chosen themselves."""
    if selection.ids is not None:
        have = set(selection.ids)
        return [row for row in rows if row.msg_id in have]
    assert selection.wanted is not None
    ids = [row.msg_id for row in rows]
    have = set(
        change.matching(conn, selection.tables, ids, words=(State.DONE,), wanted=selection.wanted)
    )
    return [row for row in rows if row.msg_id in have]


def _would_with_successors(selection: Selection, *, also_done: bool) -> DryRun:
    """What a rerun of the chosen messages with their successors would change now."""
    t, found = selection.tables, DryRun()
    ids: set[int] = set()
    done: set[int] = set()
    for page in selection.pages():
        new = [i for i in page.ids if i not in ids]  # others stand behind one that was counted
        tails = Tails.of(selection, replace(page, ids=new), also_done=also_done, counts=True)
        found.stay_done += tails.stay_done
        found.complete &= tails.complete
        heads = list(tails.first)
        with selection.clock.reading(selection.engine) as conn:
            running: dict[int, int] = {}
            for some in t.portions(heads):
                running |= change.runs_later(conn, t, some)
            states = change.states(conn, t, heads)
            behind = {row.msg_id for rows in tails.rows.values() for row in rows}
            portions = t.portions(sorted(behind))
            away = {i for some in portions for i in change.given_up(conn, t, some)}
            taken = selection.taken(conn, sorted({*heads, *behind} - away - running.keys()))
        for head in heads:
            if head in ids:
                continue
            if head in running:
                found.skips.add([Skip(head, Why.RUNS_LATER, running[head])])
                continue
            rows = [states[head]] if head in states else []
            rows += [row for row in tails.behind(head) if row.msg_id not in away]
            over = [row for row in rows if row.status in (Status.FAILED, Status.DONE)]
            if cannot := [row.msg_id for row in over if row.msg_id in taken]:
                found.skips.add([taken.get(head) or taken[cannot[0]]])
                continue
            ids.update(row.msg_id for row in over)
            done.update(row.msg_id for row in over if row.status == Status.DONE)
        found.skips.add(skip for i, skip in page.skips.items() if i not in ids)
    found.first, found.done = sorted(ids), len(done)
    found.matched = len(ids) + found.skips.count
    return found


def _with_successors(selection: Selection, page: Page, *, also_done: bool) -> Work:
    """Rerun each chosen message of a page with those behind it that are not done: those of one
    object in one transaction, because a worker that saw only a part would run the rest out of
    order.

    also_done: also the done ones behind it; else only done ones that are chosen themselves.
    """
    tails = Tails.of(selection, page, also_done=also_done)
    with_done = also_done or State.DONE in selection.action.may

    def work(op_id: int, part: list[int], conn: Connection) -> Step:
        t = selection.tables
        before = audit.touched(conn, t, op_id, part)  # already rerun behind another one
        heads, gone = selection.lock(
            conn, [i for i in part if i in tails.first and i not in before]
        )
        behind = {head: [row.msg_id for row in tails.behind(head)] for head in heads}
        if len(part) > 1 and sum(map(len, behind.values())) > MOST_BEHIND:
            raise TooMany
        ended = _lock_tail(conn, t, sorted({*heads, *chain(*behind.values())}), heads, with_done)
        running = change.runs_later(conn, t, heads)
        skips = [Skip(head, Why.RUNS_LATER, running[head]) for head in heads if head in running]
        chosen = [head for head in heads if head not in running]
        again = {i for head in chosen for i in (head, *behind[head]) if i in ended}
        taken = selection.free_keys(conn, sorted(again))
        ids: set[int] = set()
        for head in chosen:
            if head in ids:
                continue
            own = {i for i in (head, *behind[head]) if i in again}
            if cannot := sorted(own & taken.keys()):  # one of them cannot run: none does
                skips.append(taken.get(head) or taken[cannot[0]])
            else:
                ids |= own
        recorded(conn, t, op_id, sorted(ids), partial(change.rerun, done_too=True))
        known = ids | before
        skips += [page.skips[i] for i in part if i in page.skips and i not in known]
        skips += [skip for skip in gone if skip.msg_id not in known]
        return Step(len(ids) + len(skips), len(ids), skips)

    return work


def _lock_tail(
    conn: Connection, t: Tables, ids: list[int], heads: list[int], done_too: bool
) -> set[int]:
    """Lock all, also new ones, so that none is claimed meanwhile; return those to set to new."""
    found: set[int] = set()
    for some in t.portions(ids):
        change.lock(conn, t, some, words=(State.NEW,))
        ended = change.lock(conn, t, some, words=(*NOT_DONE, State.DONE) if done_too else NOT_DONE)
        found.update(ended)
        found -= change.given_up(conn, t, ended) - set(heads)
    return found
