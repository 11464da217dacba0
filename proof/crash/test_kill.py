"""Processes killed at chosen points, frozen beyond their lease, told to stop: F1-F8, F25.

A victim does what its message says (points.py); a second process, the heir, takes over. The lease
is short, so that no test waits long; what is asserted are events and their order, and the time of a
recovery only as the bound that the protocol promises, with a wide margin.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from proof.crash import points
from proof.crash.consumer import COUNTERS
from proof.crash.fleet import Consumer, Trial, Verdict, finish, pid_of
from proof.crash.scenarios import mixed
from proof.history import Kind, Outcome
from tests.support.waiting import until

ROUNDS = 2
HEIR_SECONDS = 60.0
pytestmark = pytest.mark.ahead


def starts_of(verdict: Verdict, n: int) -> list[int | None]:
    """The processes that started message n, in order."""
    return [pid_of(event.instance) for event in verdict.of(n, Kind.STARTED)]


def last_error(trial: Trial, verdict: Verdict, n: int) -> str:
    ((text,),) = trial.read("last_error", f"msg_id = {verdict.numbers[n]}")
    return str(text)


def wait_dead(victim: Consumer) -> None:
    until(lambda: not victim.running, "the victim is dead")


def heir_after(trial: Trial, victim: Consumer) -> Consumer:
    """Start a second process once the lease of the first is over: it recovers at its start, and may
    then have a lease that no busy machine makes it lose."""
    wait_dead(victim)
    trial.pauses(trial.lease + 1.0)  # its last renewal may have arrived after its death
    return trial.spawn(lease=HEIR_SECONDS, immune=True).ready()


@pytest.mark.quick("sqlite-in-settle-plain|postgresql-in-claim-plain|mariadb-after-effect-exact")
@pytest.mark.parametrize(
    ("point", "topic"),
    [
        (points.IN_CLAIM, "plain"),
        (points.AFTER_CLAIM, "plain"),
        (points.IN_HANDLER, "exact"),
        (points.AFTER_EFFECT, "plain"),
        (points.AFTER_EFFECT, "exact"),
        (points.IN_SETTLE, "plain"),
        (points.IN_SETTLE, "exact"),
        (points.AFTER_SETTLE, "exact"),
    ],
)
def test_killed_at_a_point_is_recovered_and_loses_nothing(
    trial: Trial, point: str, topic: str
) -> None:
    first = trial.send("a", topic, crash=point, crashes=99)  # whoever is not immune
    behind = [trial.send("a", topic) for _ in range(3)]
    beside = [trial.send(object_id, topic) for object_id in ("b", "b", "c", None)]
    victim = trial.spawn()
    heir_after(trial, victim)
    verdict = finish(trial)
    everything = [first, *behind, *beside]
    assert {verdict.row(n).status for n in everything} == {2}
    if topic == "exact":
        assert {verdict.count(n, Kind.EFFECT) for n in everything} == {1}
    # After the commit nothing is to be done again: with a plain settle of PostgreSQL, one statement
    # that commits by itself, that is so "in" the settle too.
    committed = point == points.AFTER_SETTLE or (
        point == points.IN_SETTLE and topic == "plain" and trial.backend == "postgresql"
    )
    ran_first = 0 if point in (points.IN_CLAIM, points.AFTER_CLAIM) else 1
    if "lost its lease" in victim.err.read_text():
        return  # so slow a machine that there was one life more
    assert verdict.count(first, Kind.STARTED) == ran_first + (0 if committed else 1)
    # F4: a claim that was rolled back has used no try.
    rolled_back = point == points.IN_CLAIM and trial.backend != "postgresql"
    assert verdict.row(first).error_try_times == (0 if committed or rolled_back else 1)
    order = [e.msg_id for e in verdict.events if e.kind == Kind.STARTED and e.object_id == "a"]
    assert order == sorted(order)  # type: ignore[type-var]


def test_kill_under_load_is_recovered_in_time(trial: Trial) -> None:
    """F1: killed at random moments, again and again, with messages in flight."""
    chance = random.Random()
    numbers = trial.send_many(mixed(150, 40, work=0.01))
    stays = trial.spawn().ready()
    for _ in range(ROUNDS):
        victim = trial.spawn().ready()
        before = len(trial.events())
        until(
            lambda: len(trial.events()) > before + 20 or not trial.unfinished(),  # noqa: B023
            "work is under way",
        )
        trial.pauses(chance.uniform(0.0, 0.3))
        victim.kill()
    verdict = finish(trial)
    assert stays.process.returncode == 0
    assert {verdict.row(n).status for n in numbers} <= {2, -1}
    done = [n for n in numbers if verdict.row(n).status == 2 and trial.sent[n].topic == "exact"]
    assert {verdict.count(n, Kind.EFFECT) for n in done} == {1}


@pytest.mark.long
@pytest.mark.ahead(spare=True)
def test_object_of_a_killed_process_goes_on_with_the_heir(trial: Trial) -> None:
    """The victim's objects are handled again within lease + 2 heartbeats, without an operator."""
    held = trial.send("a", work=120)
    behind = trial.send("a")
    victim = trial.spawn().ready()
    until(lambda: trial.seen(held, Kind.STARTED), "the victim is in the handler")
    heir = trial.spawn().ready()
    beside = trial.send("b")
    until(lambda: trial.seen(beside, Kind.STARTED), "the others go on")
    victim.kill()
    until(lambda: trial.seen(held, Kind.STARTED, by=heir), "the heir has started it")
    assert not trial.seen(behind, Kind.STARTED)
    heir.kill()
    third = trial.spawn()
    until(lambda: trial.seen(held, Kind.STARTED, by=third), "so has the third")
    third.kill()
    trial.spawn()
    verdict = finish(trial)  # I9 of the checker: each recovery was in time
    assert starts_of(verdict, held) == [victim.pid, heir.pid, third.pid]
    assert verdict.row(held).status == -1
    assert verdict.row(held).error_try_times == 3
    assert verdict.row(behind).status == 2


def holds_the_only_lock(trial: Trial) -> bool:
    """Whether no other process can write, because a process was frozen in the middle of it."""
    if trial.backend != "sqlite":
        return False
    with contextlib.closing(
        sqlite3.connect(str(make_url(trial.url).database), timeout=0.1)
    ) as conn:
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def freeze(trial: Trial, one: Consumer) -> None:
    """SIGSTOP, but not in the middle of a write that would keep all others from writing."""
    one.pause()
    while holds_the_only_lock(trial):
        one.resume()
        trial.pauses(0.02)
        one.pause()


@pytest.mark.quick("sqlite-plain|postgresql-exact")
@pytest.mark.parametrize("topic", ["plain", "exact"])
def test_frozen_beyond_its_lease_is_fenced_and_comes_back_as_another(
    trial: Trial, topic: str
) -> None:
    """F5: SIGSTOP in the handler until another process has done the message, then SIGCONT."""
    frozen = trial.send("a", topic, work=2.0)
    behind = trial.send("a", topic)
    zombie = trial.spawn(threads=1).ready()
    until(lambda: trial.seen(frozen, Kind.STARTED), "it is in the handler")
    all_stuck = trial.backend == "sqlite" and topic == "exact"
    if all_stuck:
        zombie.pause()
    else:
        freeze(trial, zombie)
    heir = trial.spawn().ready()
    if all_stuck:
        # The frozen transaction holds the only write lock there is: no other can write.
        trial.pauses(trial.lease * 1.5)
        zombie.resume()
    else:
        until(lambda: trial.seen(behind, Kind.SETTLED), "the heir has done both")
        assert heir.stop() == 0
        zombie.resume()
    after = [trial.send(object_id, topic) for object_id in ("a", "b", "c")]
    until(lambda: all(trial.seen(n, Kind.SETTLED) for n in after), "it goes on")
    verdict = finish(trial)
    assert {row.status for row in verdict.rows.values()} == {2}
    everything = (frozen, behind, *after)
    if topic == "exact":
        assert {verdict.count(n, Kind.EFFECT) for n in everything} == {1}
    if not all_stuck:  # then the zombie alone has done the rest, under a new id
        old = verdict.of(frozen, Kind.STARTED)[0].instance
        assert [e.detail for e in verdict.of(frozen, Kind.SETTLED) if e.instance == old] in (
            [],
            [Outcome.LOST],
        )
        later = {e.instance for n in after for e in verdict.of(n, Kind.STARTED)}
        assert {pid_of(instance) for instance in later} == {zombie.pid}
        assert old not in later


@pytest.mark.long
@pytest.mark.ahead(lease=30.0)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_under_load_leaves_nothing_behind(trial: Trial, number: int) -> None:
    """F8: running handlers end, everything else is given back, no try is counted."""
    numbers = trial.send_many(mixed(200, 30, work=0.02))
    for _ in range(3):
        consumer = trial.spawn(threads=4).ready()
        before = len(trial.events())
        until(
            lambda: len(trial.events()) > before + 40 or not trial.read("msg_id", "status < 2"),  # noqa: B023
            "work is under way",
        )
        consumer.send(number)
        assert consumer.wait() == 0
        assert not trial.read("msg_id", "status = 1")
    assert trial.spawn(drain=True).wait() == 0
    verdict = finish(trial)
    assert {(verdict.row(n).status, verdict.row(n).error_try_times) for n in numbers} == {(2, 0)}
    assert {verdict.count(n, Kind.STARTED) for n in numbers} == {1}
    for consumer in trial.consumers:
        assert not consumer.complaints


@pytest.mark.long
@pytest.mark.ahead(lease=8.0)
def test_second_sigterm_stops_at_once_and_recovery_follows(trial: Trial) -> None:
    held = trial.send("a", work=120)
    beside = trial.send_many([(f"o{i}", "plain", {}) for i in range(20)])
    consumer = trial.spawn(threads=2, grace=300).ready()
    until(lambda: trial.seen(held, Kind.STARTED), "the long handler runs")
    until(lambda: all(trial.seen(n, Kind.SETTLED) for n in beside), "the others are through")
    consumer.send(signal.SIGTERM)
    trial.pauses(trial.lease * 1.5)  # it has heard of it, and keeps its lease
    late = trial.send("late")
    trial.pauses(1.0)
    assert consumer.running
    assert [row[0] for row in trial.read("object_id", "status = 1")] == ["a"]
    assert not trial.seen(late, Kind.CLAIMED)
    consumer.send(signal.SIGTERM)
    assert consumer.wait() == -signal.SIGTERM
    heir = trial.spawn().ready()
    until(lambda: trial.seen(held, Kind.STARTED, by=heir), "the heir has started it")
    heir.kill()
    last = trial.spawn().ready()
    until(lambda: trial.seen(held, Kind.STARTED, by=last), "so has the last")
    last.kill()
    trial.spawn()
    verdict = finish(trial)
    assert verdict.row(held).error_try_times == 3
    assert {verdict.row(n).status for n in (late, *beside)} == {2}


@pytest.mark.quick("mariadb-segv")
@pytest.mark.ahead(spare=True)
@pytest.mark.parametrize("how", [points.IN_HANDLER, points.EXIT, points.SEGV])
def test_poison_dies_after_three_starts_and_takes_nobody_along(trial: Trial, how: str) -> None:
    """F25: it kills its process in every try; quarantine keeps it from killing others with it."""
    poison = trial.send("p", crash=how, crashes=99)
    behind = trial.send("p")
    innocents = trial.send_many(mixed(40, 12, work=0.01))
    lives = 0
    consumer = trial.spawn(threads=4)
    pause = 0.05
    while trial.unfinished():
        if not consumer.running:
            lives += 1
            assert lives < 10, "it goes on killing"
            consumer = trial.spawn(threads=4)
        trial.pauses(pause)
    verdict = finish(trial)
    assert lives == 3
    assert verdict.count(poison, Kind.STARTED) == 3
    assert verdict.row(poison).status == -1
    assert {verdict.row(n).status for n in (behind, *innocents)} == {2}
    exact = [n for n in innocents if trial.sent[n].topic == "exact"]
    assert {verdict.count(n, Kind.EFFECT) for n in exact} == {1}


@pytest.mark.quick("sqlite")
@pytest.mark.ahead(lease=60.0)
def test_memory_that_runs_out_fails_the_try_and_the_process_goes_on(trial: Trial) -> None:
    """F25: MemoryError, in the handler and for a moment in every other thread too."""
    hog = trial.send("p", hogs=99)
    cured = trial.send("q", hogs=1)
    innocents = trial.send_many(mixed(60, 12, work=0.01))
    behind = [trial.send("p"), trial.send("q")]
    consumer = trial.spawn(threads=4, memory=768)  # of addresses: a thread takes 72 MiB
    until(lambda: not (trial.unfinished() and consumer.running), "an end", seconds=90, every=0.1)
    crashed = consumer.process.returncode in (-signal.SIGSEGV, -signal.SIGABRT)
    if crashed or "Fatal Python error" in consumer.err.read_text(errors="replace"):
        pytest.skip("the interpreter itself has given up: no memory to report an error")
    verdict = finish(trial)
    assert consumer.told_to_stop  # it has lived until then
    assert [verdict.count(n, Kind.STARTED) for n in (hog, cured)] == [3, 2]
    assert verdict.row(hog).status == -1
    assert {verdict.row(n).status for n in (cured, *behind, *innocents)} == {2}
    assert "MemoryError" in last_error(trial, verdict, hog)


@pytest.mark.quick("postgresql")
@pytest.mark.ahead(lease=60.0)
def test_items_that_end_or_hang_their_threads_fail_alone(trial: Trial) -> None:
    """F27: SystemExit, KeyboardInterrupt and an item beyond the time of its handler."""
    items = ["a", "exit", "hang", "interrupt", "b"]
    doomed = ["c", "exit2", "interrupt2"]
    with trial.app.engine.begin() as conn:
        conn.execute(COUNTERS.insert(), [{"name": name, "n": 0} for name in (*items, *doomed)])
    cured = trial.send("p", "fan", items=items, fails=1)
    dead = trial.send("q", "fan", items=doomed, fails=99)
    beside = [trial.send(name) for name in "pqr"]
    consumer = trial.spawn(threads=2)
    verdict = finish(trial)  # no thread is left that would hold up its end
    assert consumer.told_to_stop
    assert (verdict.row(cured).status, verdict.row(cured).error_try_times) == (2, 1)
    assert verdict.row(dead).status == -1
    assert all(name in last_error(trial, verdict, dead) for name in ("exit2", "interrupt2"))
    assert {verdict.row(n).status for n in beside} == {2}
    with trial.reader.connect() as conn:
        ran = {name: n for name, n in conn.execute(sa.select(COUNTERS.c.name, COUNTERS.c.n))}
    assert [ran[name] for name in ("a", "b", "c", "hang")] == [1, 1, 1, 1]
    assert [ran[name] for name in ("exit2", "interrupt2")] == [3, 3]


@pytest.mark.long
def test_several_poisons_never_kill_an_innocent(trial: Trial) -> None:
    """I10: also where two of them meet in one instance, more than once."""
    poisons = [trial.send(f"p{i}", crash=points.IN_HANDLER, crashes=99) for i in range(3)]
    innocents = trial.send_many([(f"o{i % 10}", "plain", {"work": 0.005}) for i in range(60)])
    lives = [trial.spawn(threads=4) for _ in range(2)]
    while trial.unfinished():
        lives = [life if life.running else trial.spawn(threads=4) for life in lives]
        assert len(trial.consumers) < 30, "it goes on killing"
        trial.pauses(0.05)
    verdict = finish(trial)
    assert {verdict.row(n).status for n in innocents} == {2}
    assert [verdict.row(n).status for n in poisons] == [-1, -1, -1]


@pytest.mark.quick("sqlite")
def test_frozen_between_claim_and_handler_does_not_start_it(trial: Trial) -> None:
    """F6: its lease is over when it wakes, so it leaves the message to whoever has it now."""
    frozen = trial.send("a", crash=points.FREEZE)
    behind = trial.send("a")
    zombie = trial.spawn(threads=1).ready()
    until(lambda: trial.read("msg_id", "status = 1"), "it has claimed")
    trial.pauses(trial.lease)
    heir = trial.spawn(lease=HEIR_SECONDS).ready()
    until(lambda: trial.seen(behind, Kind.SETTLED), "the heir has done both")
    assert heir.stop() == 0
    zombie.resume()
    after = trial.send("a")
    until(lambda: trial.seen(after, Kind.SETTLED), "the other goes on, as another")
    verdict = finish(trial)
    told = "\n".join(map(str, verdict.of(frozen)))
    assert starts_of(verdict, frozen) == [heir.pid], told
    assert starts_of(verdict, after) == [zombie.pid]


@pytest.mark.long
def test_all_frozen_beyond_their_leases_go_on_without_a_storm(trial: Trial) -> None:
    """F7, with F31 and F18: many instances, one object, gaps in the ids."""
    loads: list[Any] = [("a", ("plain", "exact")[i % 2], {"work": 0.005}) for i in range(60)]
    for part in range(0, 60, 20):
        trial.send_many(loads[part : part + 20])
        with contextlib.suppress(ZeroDivisionError), trial.sending() as add:
            add("a", "plain", {})
            raise ZeroDivisionError
    fleet = [trial.spawn(threads=1).ready() for _ in range(4)]
    until(lambda: len(trial.events()) > 10, "work is under way")
    for consumer in fleet:
        consumer.pause()
    trial.pauses(trial.lease * 1.3)
    for consumer in fleet:
        consumer.resume()
    verdict = finish(trial)
    assert {row.status for row in verdict.rows.values()} == {2}
    for consumer in fleet:
        assert len(consumer.err.read_text().splitlines()) < 12, consumer.err.read_text()


@pytest.mark.quick("sqlite")
@pytest.mark.ahead(lease=60.0)
def test_wall_clocks_of_consumers_do_not_matter(trial: Trial) -> None:
    """F19: a day ahead, a day behind, and right, side by side."""
    numbers = trial.send_many([*mixed(60, 15), ("f", "plain", {"fails": 1})])
    for wall in (86_400, -86_400, 0):
        trial.spawn(threads=2, wall=wall)
    verdict = finish(trial)
    assert {verdict.row(n).status for n in numbers} == {2}
    assert {verdict.row(n).error_try_times for n in numbers[:-1]} == {0}


@pytest.mark.long
def test_killed_when_the_clock_of_the_database_was_put_back(trial: Trial) -> None:
    """F20: or the dead would look alive for a day."""
    held = trial.send("a", crash=points.IN_HANDLER, crashes=99)
    behind = trial.send("a")
    victim = trial.spawn()
    wait_dead(victim)
    trial.jump(-86_400)
    heir = trial.spawn(immune=True)
    verdict = finish(trial)  # which judges that it was in time
    assert starts_of(verdict, held) == [victim.pid, heir.pid]
    assert starts_of(verdict, behind) == [heir.pid]
    assert heir.err.read_text().count("clock was set back") == 1


@pytest.mark.long
def test_clock_of_the_database_put_forward_costs_tries_and_breaks_nothing(trial: Trial) -> None:
    """F20: every lease is over at once. Who has not noticed yet may claim again what it lost; one
    of two has, since it recovers, so that nothing dies of it. One stands still, or both might renew
    their leases before anyone looks for those that are over."""
    numbers = trial.send_many(mixed(300, 15, work=0.05))
    one, _ = (trial.spawn(threads=2).ready() for _ in range(2))
    until(lambda: len(trial.events()) > 30, "work is under way")
    freeze(trial, one)
    trial.jump(86_400)
    until(lambda: len(trial.instances()) == 1, "its lease is taken over")
    one.resume()
    until(lambda: "lost its lease" in one.err.read_text(), "it has noticed")
    verdict = finish(trial)
    assert {verdict.row(n).status for n in numbers} == {2}
    exact = [n for n in numbers if trial.sent[n].topic == "exact"]
    assert {verdict.count(n, Kind.EFFECT) for n in exact} == {1}
