"""The functions of store/ and queries/ that send a statement, with arguments; and a connection that
only notes what it is sent. tests/test_ddl.py finds what is missing of queries/."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from msgworker.db.database import DATABASES
from msgworker.limit import Limit
from msgworker.message import Outcome, Settlement, State
from msgworker.queries import (
    counts,
    explain,
    failures,
    instances,
    lanes,
    messages,
    pages,
    remaining,
)
from msgworker.queries import jobs as shown_jobs
from msgworker.store import (
    audit,
    bounded,
    candidates,
    change,
    claim,
    controls,
    history,
    items,
    jobs,
    lease,
    limits,
    locks,
    purge,
    ranked,
    recover,
    schedules,
    send,
    settle,
    slices,
    tries,
)
from msgworker.store.bounded import Filter, cursor_text
from msgworker.store.candidates import Candidate
from msgworker.store.controls import Asked
from msgworker.store.done import still_mine
from msgworker.store.rows import Row
from msgworker.store.settle import Share, settle_batch
from msgworker.store.slices import Place
from msgworker.table.tables import Tables, by_job, takes_keys
from tests.oracle_driver import Log


class Compiled:
    """Stands for a connection: compiles what it is sent; gives rows as Log does."""

    rowcount = 1

    def __init__(self, name: str) -> None:
        self.dialect = DATABASES[name].offline_dialect()
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.sent: list[str] = []

    def execute(self, statement: Any, params: Any = None) -> Any:
        self.sent.append(str(statement.compile(dialect=self.dialect)))
        return self

    def all(self) -> list[tuple[Any, ...]]:
        after = "%(value)s" in self.sent[-1] or "> %s" in self.sent[-1]
        return [] if after else list(self.rows.get("SELECT", ()))

    def scalar(self, *sent: Any) -> Any:
        return next(iter(self.scalars(*sent)), None)

    def scalars(self, *sent: Any) -> list[Any]:
        return [row[0] for row in self.execute(*sent).all()]

    def first(self) -> None:
        return None

    one_or_none = first

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Opened(NamedTuple):
    name: str = "j"
    on_complete: str = "t"
    object_id: None = None
    payload: None = None
    cancelled_at: None = None


OPENED = _Opened()
LOCKED = (0, 1, "a", "t", None, 0, 0, 0, None, None, None)
FIRST: dict[str, Any] = {"newest": True, "limit": 50, "after": None}  # what says nothing of a page


def filters_of(t: Tables, **filters: Any) -> dict[str, Any]:
    """Those of the filters for which the table has the column."""
    roles = {"topic": "topic", "error": "last_error", "since": "created_at"}
    return {name: one for name, one in filters.items() if t.has(roles.get(name, "msg_id"))}


def _shown_row(status: int) -> tuple[Any, ...]:
    return (1, "a", "t", status, 0, "{}", *[None] * 3, 0, *[None] * 3, 0, 0, *[None] * 5)


def acts(t: Tables, log: Log) -> Iterator[Any]:
    """Every function of store/, so that every statement is built and sent."""
    row = Row(1, "a", "t", None, 0, 0, 0, None, None)
    seen_heads = [Candidate(1, "a", 0, 0, 0, "t", 1, None)]
    seen = lease.Lease("x", "instance", 1, None, 0, 1, *[datetime.now(UTC)] * 3, None, 0)
    many = list(range(2500))
    log.rows["FOR UPDATE"] = [LOCKED]
    log.rows["count(*) AS count_1 \n"] = [(0,)]
    yield candidates.oldest, {"mark": 0, "limit": 10}
    yield candidates.oldest, {"mark": 0, "limit": 10, "share": (1, 2)}
    yield candidates.due_after, {"since": None, "limit": 10}
    yield candidates.due_after, {"since": ("2026-11-22 10:00:00.000000", 1), "limit": 10}
    if t.has("priority"):
        for role in (None, "shard", "instance_type"):
            yield ranked.ranked, {"limit": 10, "role": role}
            yield ranked.ranked, {"limit": 10, "after": (-5, 1), "role": role}
        yield ranked.due_and_ranked, {"since": None, "limit": 10, "most": 10}
        behind = ("2026-11-22 10:00:00.000000", 1)
        yield ranked.due_and_ranked, {"since": behind, "limit": 10, "most": 10}
    yield candidates.heads, {"after": None, "limit": 10}
    yield candidates.heads, {"after": "o", "limit": 10}
    yield candidates.without_object, {"after": 0, "limit": 10}
    yield candidates.without_object, {"after": 0, "limit": 10, "share": (1, 2)}
    if t.has("topic"):
        steps = {"mark": 0, "limit": 10, "span": 100}
        log.rows["count(*) AS n, max("] = [(3, 7)]
        for but in (False, True):
            yield candidates.oldest_among, {"topics": ["a", "b"], "but": but, **steps}
        yield candidates.newest, {}
        yield candidates.heads_of, {"ids": [1, 2]}
        log.rows["count(*) AS n, max("] = [(3, "o")]
        for after in (None, "o"):
            those = candidates.Those(["a", "b"], but=True)
            yield candidates.heads, {"after": after, "limit": 10, "those": those}
        numbers = Limit(4, 20, 1, 20)
        log.rows["FOR UPDATE"] = [(4, 20, 1, 20, 0, 5)]
        yield limits.lock, {"topic": "default"}
        log.rows["FOR UPDATE"] = [LOCKED]
        yield limits.take, {"topic": "a", "free": limits.Free(numbers, 1, 0, 5), "count": 2}
        for there in (None, limits.Recorded(numbers, 1, "x")):
            yield limits.declare, {"topic": "a", "limit": numbers, "seen": there, "me": "me"}
        yield limits.remove, {"topic": "a"}
        yield instances.topics, {}
    waits = {"linger": 5.0, "retry_linger": 300.0}
    yield ranked.due_in, {"topics": None, "paused": (), **waits}
    yield ranked.due_in, {"topics": ["a", "b"], "paused": ["b"], **waits}
    yield claim.flag, {"candidates": seen_heads, "me": "me"}
    log.rowcount = 0  # something was lost: what has been flagged is read back
    yield claim.flag, {"candidates": seen_heads, "me": "me"}
    log.rowcount = 1
    yield claim.flag_apart, {"candidates": seen_heads, "me": "me"}
    yield claim.read_runs, {"heads_flagged": [row], "limit": 10}
    yield claim.read_runs, {"heads_flagged": [row] * 60, "limit": 10}
    for deletes in (False, True):
        done = Settlement(1, next_id=2, deletes=deletes)
        yield settle.settle, {"batch": [done], "me": "me"}
        if t.database.arrays:
            log.rows = {"SELECT": [("{1,3}", "{2}")]}
            both = [done, Settlement(3, deletes=deletes)]
            yield settle.settle, {"batch": both, "me": "me"}
            log.rows = {}
    for outcome in Outcome:
        yield settle.settle, {"batch": [Settlement(1, outcome, error="e", trace="t")], "me": "me"}
    shares = [Share(1, [2], 3)]
    for tries_seen in (0, None):
        yield settle_batch, {"shares": shares, "me": "me", "tries": tries_seen}
    yield settle_batch, {"shares": shares, "me": "me", "deletes": True}
    for deletes in (False, True):
        one = Settlement(1, next_id=2, deletes=deletes)
        yield settle.settle_one, {"settlement": one, "me": "me"}
    yield still_mine, {"ids": many, "me": "me"}
    tick = datetime(2026, 11, 22, tzinfo=UTC)
    stored = schedules.Stored(
        *("n", "every 5m", "UTC", "t", None, None, "last", tick, None, None, None, 3, None, None)
    )
    ticks = [
        send.row_values(
            t, topic="t", object_id=None, payload="{}", delay=None, at=None, scheduled_for=x
        )
        for x in (tick, tick)
    ]
    values = {"spec": "every 5m", "time_zone": "UTC", "topic": "t", "object_id": None}
    values |= {"payload": "{}", "catch_up": "all", "next_at": tick, "declared_by": "me"}
    log.rows["AS mw_now \nFROM DUAL"] = log.rows["AS mw_now FROM DUAL"] = [(tick,)]
    yield schedules.look, {"whole": True}
    yield schedules.insert, {"values": values | {"name": "n"}}
    yield schedules.change, {"seen": stored, "values": values | {"last_at": tick}}
    asked = {"ticks": (tick, tick), "next_at": tick}
    yield schedules.fire, {"seen": stored, "rows": ticks, **asked}
    yield schedules.fire, {"seen": stored, "rows": ticks, **asked, "skips": True}
    yield schedules.delete, {"seen": stored}
    yield schedules.tick_of, {"msg_id": 1}
    if jobs.is_there(t):
        opens = {"name": "j", "on_complete": "t", "object_id": None, "payload": None}
        yield jobs.open_job, opens | {"on_dead": "wait", "opened_by": None}
        yield jobs.lock_open, {"job_id": 1}
        yield jobs.seal, {"job_id": 1}
        yield jobs.job_of, {"msg_id": 1}
        yield jobs.ended, {"after": 0}
        yield jobs.cancel, {"job_id": 1}
        yield jobs.pause, {"job_id": 1, "by": "me", "why": "so"}
        yield jobs.resume, {"job_id": 1}
        yield jobs.forget, {"before": datetime.now(UTC), "after": 0}
        yield controls.paused_job_ids, {}
        yield controls.paused_jobs, {}
        yield controls.held_among, {"ids": [1]}
        some = log.rows
        log.rows = {"FOR UPDATE": [OPENED], "count(*) AS count_1, max(": [(1, 1)]}
        yield jobs.complete, {"job_id": 1}
        log.rows = {"count(*)": [(1,) * 5]}
        yield shown_jobs.find, {"is_open": True, "limit": 5, "after": 9}
        yield shown_jobs.find, {"is_open": False, "limit": 5, "after": None}
        yield shown_jobs.show, {"job_id": 1}
        yield jobs.counts, {"job_id": 1, "most": 5}
        yield jobs.counts, {"job_id": 1, "most": 5, "done": False}
        log.rows = {"count(*)": [(1, 1)]}
        yield jobs.given_up, {"job_id": 1}
        yield jobs.awaited, {"job_id": 1}
        log.rows = {}
        part = {"job_id": 1, "world": explain.World(), "most": 4}
        yield remaining.of_job, part | {"retries": True}
        yield remaining.of_job, part | {"retries": False}
        log.rows = some
    yield recover.flagged_by, {"instance_id": "x"}
    yield recover.owners, {}
    yield recover.recover, {"ids": many[: recover.BATCH], "dead_id": "x", "text": "died"}
    yield recover.release, {"ids": many[: recover.BATCH], "me": "me"}
    yield recover.release, {"ids": many[: recover.BATCH], "me": "me", "tries": 1}
    if not t.has("claimed_by"):
        yield recover.still_flagged, {"seen": dict.fromkeys(many[:9], 1)}
    yield recover.foreign, {"after": 5}
    yield recover.foreign, {"after": 5, "before": datetime.now(UTC)}
    yield recover.undated, {"limit": 5}
    yield recover.recover_foreign, {"ids": many[:9], "seen_tries": 1, "text": "of nobody"}
    yield lease.register, {"name": "x", "ttl": 30.0}
    yield lease.is_kept, {"name": "x"}
    yield lease.renew, {"name": "me", "ttl": 30.0, "serves": lease.serves_text(t, None)}
    yield lease.renew, {"name": "x", "ttl": 30.0}
    yield lease.read_all, {}
    yield lease.take_over, {"seen": seen, "me": "me", "ttl": 30.0}
    yield lease.restart_ttl, {"seen": seen}
    yield lease.take_over_live, {"name": "x", "me": "me", "ttl": 30.0}
    yield lease.leave, {"name": "x", "taken_by": "me"}
    yield lease.drop, {"name": "x"}
    yield lease.drop, {"name": "x", "taken_by": "me"}
    yield counts.counts, {}
    yield counts.counts, {"most": 0}
    yield messages.unfinished, {}
    log.rows["count(*) AS count_1 \n"] = [(3,)]
    yield remaining.left, {"asked": explain.Asked(topics=None)}
    yield remaining.left, {"asked": explain.Asked(topics=None), "most": 2}
    log.rows["count(*) AS count_1 \n"] = [(0,)]
    every = tuple(State)
    for word in State:
        yield messages.find, {"wanted": Filter((word,))}
    filters = filters_of(t, topic="t", object_id="o", error="e", since=datetime.now(UTC))
    yield messages.find, {"wanted": Filter(every, **filters), "after": 1}
    yield messages.show, {"msg_id": 1}
    late = cursor_text([1, ["2026-11-22 10:00:00.000000", 1]])
    for words in (every, *((word,) for word in State)):
        for newest in (True, False):
            yield pages.page, FIRST | {"wanted": Filter(words), "newest": newest}
            done = words == (State.DONE,) and newest
            behind = cursor_text([0, 1, None, None] if done else [0, 1])
            wanted = Filter(words, **filters)
            yield pages.page, FIRST | {"wanted": wanted, "newest": newest, "after": behind}
    yield pages.page, FIRST | {"wanted": Filter((State.NEW,)), "after": late}
    yield pages.page, FIRST | {"wanted": Filter((State.DONE,)), "after": cursor_text([2, 9, 8, 5])}
    for newest in (True, False):
        failed = (State.FAILED, State.DEAD)
        group = Filter(failed, fingerprint="a" * 16, **filters_of(t, topic="t"))
        yield pages.page, FIRST | {"wanted": group, "newest": newest, "after": cursor_text([1])}
        yield pages.of_group, FIRST | {"wanted": group, "newest": newest, "after": 1}
    some = log.rows
    log.rows = {"min(w.i)": [(None, 0)], "min(m.i)": [(None, 0)], "AND (": [("o", "o")]} | some
    yield lanes.place, {"msg_id": 1}
    log.rows = {"FROM DUAL": [(datetime.now(UTC),)]} | some
    yield counts.overview, {}
    log.rows = some
    yield failures.failures, {}
    small = cursor_text([1, "a"])
    narrower = filters_of(t, topic="t", since=datetime.now(UTC))
    yield failures.failures, narrower | {"after": small}
    if by_job(t):
        yield failures.failures, {"job": 1}
    some = log.rows
    log.rows = {"GROUP BY e.o": [(1, "o", 2)], "u.p": []} | some
    yield lanes.by_object, {}
    yield lanes.by_object, {"after": cursor_text(["o"])}
    log.rows = some
    yield lanes.lanes, {"limit": 50}
    yield lanes.lanes, {"limit": 50, "blocked": True}
    some = log.rows
    log.rows = {"OFFSET": [(1, "o")], "u.p": []} | some  # more objects than are looked at
    yield lanes.lanes, {"limit": 50}
    log.rows = some
    yield instances.instances, {}
    yield instances.leased, {}
    yield instances.leases_ending, {"within": 9.0, "but": "x"}
    yield instances.served, {}
    yield messages.by_ids, {"ids": many}
    yield messages.with_past, {"infos": []}
    yield counts.timings, {"window": "1h"}
    some = log.rows
    log.rows = {
        "count(*) AS count_1 \nFROM (SELECT": [(2, 1)],
        "seen_owner": [],
        "last_error": [_shown_row(0)],
    } | some
    yield explain.explain, {"msg_id": 1}
    yield explain.of_heads, {"infos": [], "world": explain.World()}
    log.rows = some
    yield tries.of, {"ids": many}
    yield tries.of, {"ids": many, "traces": True}
    some = log.rows
    log.rows = {"GROUP BY": [(2, 1)]} | some
    yield items.shown, {"msg_id": 1, "limit": 9}
    log.rows = some
    for state in (None, *items.ItemState):
        yield items.find, {"msg_id": 1, "state": state, "after": "a"}
    done = items.Record("a", True, 1, "1")
    log.rows["FOR UPDATE"] = [(datetime.now(UTC),)]
    yield items.count, {"msg_id": 1}
    yield items.known, {"msg_id": 1, "keys": [str(n) for n in many]}
    batch = [done, items.Record("b", False, 2, None, "e")]
    yield items.record, {"msg_id": 1, "batch": batch, "me": "me", "tries": 0, "there": ["b"]}
    for there in (True, False):
        record = {"msg_id": 1, "one": done, "me": "me", "tries": 0, "there": there}
        yield items.record_one, record
    yield from scope_acts(t, log)
    if t.has("shard"):
        yield instances.running_slices, {"role": "shard"}
    yield from ops_acts(t, log)
    for delay, at in ((None, None), (1.0, None), (None, datetime.now(UTC))):
        options = {"topic": "t", "object_id": "o", "payload": "{}", "delay": delay, "at": at}
        options |= {"priority": 5 if t.has("priority") else None}
        yield send.insert_many, {"rows": [send.row_values(t, **options)] * 2}
        yield send.insert_one, {"values": send.row_values(t, **options)}
        if t.max_headers:
            values = send.row_values(t, **options, unique_key="k") | {"b_headers": "{}"}
            yield send.insert_one, {"values": values}
            yield send.replace, {"found": send.Holder(1, "t", "o", False), "row": values}
        if takes_keys(t):
            row = send.row_values(t, **options, unique_key="k", kept=delay is None)
            yield send.send, {"row": row, "on_duplicate": "skip"}
            found = send.Holder(1, "t", "o", False)
            yield send.replace, {"found": found, "row": row}
            yield send.give_up, {"found": found, "key": "k"}
            yield change.taken, {"ids": many}
            yield change.free_keys, {"ids": many}


def scope_acts(t: Tables, log: Log) -> Iterator[Any]:
    """What instances with a scope ask for, and dealers, and holders of locks."""
    many = list(range(2500))
    if t.has("job_id"):
        yield slices.heads_of_job, {"place": Place(7), "rows": 8}
    found, log.rows = log.rows, {}
    for role in ("shard", "instance_type"):
        if not t.has(role):
            continue
        values: list[Any] = many if role == "shard" else [f"as{n}" for n in many]
        for count in (1, 2, 9, 70):
            begun = [Place(value, "o") for value in values[:count]]
            numbered = [Place(value, 5) for value in values[:count]]
            fresh = [Place(value) for value in values[:count]]
            if t.database.slices_by_age:
                for places in (fresh, numbered):
                    yield slices.heads_by_age, {"role": role, "places": places, "rows": 8}
                continue
            for deep in (False, True):
                for places in (fresh, begun):
                    yield slices.heads, {"role": role, "places": places, "rows": 8, "deep": deep}
            for places in (fresh, numbered):
                yield slices.without_object, {"role": role, "places": places, "rows": 8}
        for value in (values[0], None):
            yield slices.open_in, {"role": role, "value": value}
            yield slices.open_in, {"role": role, "value": value, "objects": True}
        log.rows = {":value": [], "SELECT": [(values[0],)]}  # nothing is behind the first
        yield slices.open_values, {"role": role}
        log.rows = {}
    if t.has("shard"):
        yield slices.other_numbers, {}
    if t.has("instance_type"):
        yield locks.undealt, {}
        yield locks.undealt, {"flag": "asA"}
        yield locks.flags, {}
        yield locks.flags_of, {"objects": [str(n) for n in many]}
        yield locks.deal, {"msg_ids": many, "flag": "asA"}
        yield locks.take_back, {"msg_ids": many, "flag": "asA"}
    yield instances.stands_of, {"ids": many}
    mine = {"name": "x", "owner": "me"}
    yield locks.there, {"names": ["x", "y"]}
    yield locks.acquire, {"names": ["x"], "owner": "me", "ttl_ms": 1, "claim_id": "c"}
    yield locks.acquired, {"owner": "me", "claim_id": "c"}
    yield locks.renew, mine | {"token": 1, "ttl_ms": 1}
    yield locks.renew_all, {"owner": "me", "ttl_ms": 1}
    yield locks.release, mine | {"token": 1}
    yield locks.held, {"prefix": "a_b"}
    yield locks.holder, {"name": "x"}
    log.rows = found


def ops_acts(t: Tables, log: Log) -> Iterator[Any]:
    now, some = datetime.now(UTC), list(range(400))
    everything = filters_of(t, topic="t", object_id="o", error="e", since=now, fingerprint="f")
    plain = Filter((State.DEAD,), given_up=False)
    log.rows = {"LIKE": [(1, "ValueError: e")]}
    for wanted in (plain, Filter(tuple(State), **everything)):
        yield bounded.ids_of_filter, {"wanted": wanted, "after": 1, "limit": 10}
        yield change.lock, {"ids": some, "words": (State.DEAD,), "wanted": wanted}
        yield change.ran_later, {"ids": some, "wanted": wanted}
    yield change.lock, {"ids": some, "words": (State.FAILED, State.DEAD, State.DONE)}
    yield change.lock, {"ids": some, "words": (State.PROCESSING,), "waits": False}
    yield change.ran_later, {"ids": some}
    yield change.runs_later, {"ids": some}
    yield change.behind, {"ids": some}
    yield change.done_above, {"ids": [1, 2], "msg_id": 1}
    yield change.given_up, {"ids": some}
    log.rows = {"count(*)": [(0,)]}
    yield change.states, {"ids": some}
    yield change.ran_later, {"ids": some[:1]}
    yield change.lowest, {"ids": some}
    yield change.not_done_behind, {"ids": some}
    for lows in (some, some[:1]):
        yield change.done_behind, {"lows": lows}
    yield change.matching, {"ids": some, "words": (State.DONE,), "wanted": plain}
    yield change.rerun, {"ids": some, "done_too": True}
    yield change.discard, {"ids": some, "text": "discarded by me: why"}
    yield change.cancel, {"ids": some, "text": "cancelled: why (by me)"}
    yield change.known, {"ids": some}
    if t.has("last_error"):
        yield change.acknowledge, {"ids": some, "text": "acknowledged by me: why"}
    yield change.to_edit, {"msg_id": 1, "lock": True}
    yield change.object_runs, {"msg_id": 1}
    yield change.read_ahead, {"ids": some}
    held = change.Held(0, 0, "o", "t", "1", None, None, 0, None, None, None, 0, 0)
    values = {"b_topic": "t", "b_payload": "1", "b_priority": 1, "b_at": now}
    known = {"b_topic": "topic", "b_payload": "payload", "b_priority": "priority"}
    values = {k: one for k, one in values.items() if t.has(known.get(k, "available_at"))}
    if values:
        yield change.edit, {"msg_id": 1, "held": held, "params": values, "at_once": False}
    yield controls.look, {}
    yield controls.requests, {}
    yield controls.requests, {"ids": some}
    yield controls.requests, {"me": "a"}
    yield controls.running, {"ids": some}
    yield controls.request_cancel, {"running": {1: ("a", 0)}, "actor": "me", "reason": "why"}
    yield controls.drop_requests, {"ids": some}
    request = controls.Request(1, "me", "why", now, "a", 0)
    yield controls.drop_seen, {"seen": request}
    yield change.end_request, {"asked": Asked(request, State.FAILED, None, False, False)}
    yield audit.running_before, {"op_id": 1}
    begun = {"kind": "rerun", "by": audit.Who("me", "why"), "asked": {"ids": [1]}}
    yield audit.begin, begun
    yield audit.read, {"op_id": 1}
    operation = audit.Operation(1, "rerun", "me", None, {}, now)
    yield audit.advance, {"seen": operation, "after": operation}
    yield audit.record, {"op_id": 1, "ids": some}
    yield audit.touched, {"op_id": 1, "ids": some}
    yield audit.entries, {"msg_id": None, "limit": 10}
    yield audit.entries, {"msg_id": 1, "limit": 10}
    yield audit.finish, {"op_id": 1}
    minute = history.Minute(now, "x", {"t": history.Counts(done=1)})
    yield history.written, {"minutes": [minute]}
    yield history.write, {"minutes": [minute]}
    counted, log.rows = log.rows, {"minute_at": [(now,)]}
    yield history.forget, {"keep_seconds": 3600.0}
    log.rows = counted
    yield controls.pauses, {}
    yield controls.pause, {"topic": "t", "actor": "me", "reason": None}
    yield controls.resume, {"topic": "t"}
    if purge.has_age(t):
        old = {"old": purge.Old(now, dead=True, topic="t")}
        yield purge.count, old
        yield purge.page, old | {"after": 1, "limit": 10}
        yield purge.lock, old | {"ids": some}
        archive = sa.Table("msg_archive", sa.MetaData(), *(sa.Column(n) for n in t.names.values()))
        names, held = list(t.names.values()), [t.message.c[n] for n in t.names.values()]
        yield purge.archive, {"into": purge.Archive(archive, held, names, [], {}), "ids": some}
        yield purge.delete, {"ids": some, "beside": [t.item]}
