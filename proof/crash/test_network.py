"""Cuts exactly at COMMIT, half-open connections, a server that cannot be reached, slow lines:
F12-F15, and what is written into the log about it. The consumers go through a Proxy."""

from __future__ import annotations

from typing import Any

import pytest

from proof.crash.fleet import Consumer, Trial, assert_clean, assert_once, finish, pid_of
from proof.crash.scenarios import mixed
from proof.history import Kind
from tests.support.waiting import until

COMMITS = {
    "claim": r"WITH locked AS|UPDATE IGNORE \S+ (FORCE INDEX \(PRIMARY\) )?SET status=1",
    "settle": r"^(?!.*INTO effect).*SET status=2",
    "exact": r"INTO effect",
}
CUTS_OF_EACH = 2
ON_SERVERS = pytest.mark.parametrize("trial", ["postgresql", "mariadb"], indirect=True)


def proxied(**how: Any) -> pytest.MarkDecorator:
    return pytest.mark.ahead(proxied=True, **how)


def warnings_of(consumer: Consumer) -> list[str]:
    lines = consumer.err.read_text().splitlines()
    return [line for line in lines if line.startswith(("WARNING", "ERROR"))]


@pytest.mark.quick("postgresql")
@ON_SERVERS
@proxied(lease=60.0)
def test_cut_at_commit_is_answered_by_reading_and_never_guessed(trial: Trial) -> None:
    """F12, rules I3-I6: claims, settles and transactional handlers, each cut before the server has
    got the COMMIT and after it has committed."""
    assert trial.proxy is not None
    cuts = [
        trial.proxy.cut_at(match, side, times=CUTS_OF_EACH, every=3)
        for match in COMMITS.values()
        for side in ("before", "after")
    ]
    trial.spawn(threads=3).ready()
    while any(cut.done < CUTS_OF_EACH for cut in cuts):
        trial.send_many(mixed(40, 8, work=0.002))
        until(lambda: trial.unfinished() < 40, "work goes on", every=0.05)
        assert len(trial.sent) < 4000, [cut for cut in cuts if cut.done < CUTS_OF_EACH]
    verdict = finish(trial)
    assert_once(trial, verdict)


@pytest.mark.quick("postgresql")
@ON_SERVERS
@proxied(lease=60.0)
def test_drain_whose_last_claim_was_cut_leaves_nothing(trial: Trial) -> None:
    """F12: the claim has committed, its answer is lost, and there is nothing else to be claimed."""
    assert trial.proxy is not None
    cut = trial.proxy.cut_at(COMMITS["claim"], "after")
    trial.send("a")
    trial.send(None)
    assert trial.spawn(drain=True, linger=0).wait() == 0
    assert cut.done == 1
    verdict = trial.judge(orderly=True)
    assert_clean(trial, verdict, quiet=False)
    assert_once(trial, verdict)


@pytest.mark.quick("exact-mariadb")
@ON_SERVERS
@proxied()
@pytest.mark.parametrize("topic", ["plain", "exact"])
def test_half_open_connections_cost_the_lease_and_are_cut(trial: Trial, topic: str) -> None:
    """F13 and F15, rules I1, I3, I5, I9: one instance talks into a black hole, the other one takes
    its message over; the first one notices by itself, is fenced, and comes back as another."""
    assert trial.proxy is not None
    held = trial.send("a", topic, work=2.0)
    behind = trial.send("a", topic)
    far = trial.spawn(threads=2).ready()
    until(lambda: trial.seen(held, Kind.STARTED), "it is in the handler")
    trial.proxy.hole()
    near = trial.spawn(through=trial.sends_with, threads=2).ready()
    until(lambda: trial.seen(behind, Kind.SETTLED), "the near one has done both")
    until(lambda: "no progress" in far.err.read_text(), "the watchdog has cut")
    assert near.stop() == 0
    trial.proxy.heal()
    after = [trial.send(object_id, topic) for object_id in ("a", "b")]
    until(lambda: all(trial.seen(n, Kind.SETTLED) for n in after), "the far one goes on")
    verdict = finish(trial)
    assert {row.status for row in verdict.rows.values()} == {2}
    if topic == "exact":
        assert {verdict.count(n, Kind.EFFECT) for n in (held, behind, *after)} == {1}
    old = verdict.of(held, Kind.STARTED)[0].instance
    later = {e.instance for n in after for e in verdict.of(n, Kind.STARTED)}
    assert old not in later
    assert {pid_of(instance) for instance in later} == {far.pid}
    assert len(warnings_of(far)) < 12, warnings_of(far)


@pytest.mark.quick("mariadb")
@ON_SERVERS
@proxied(lease=60.0)
def test_an_outage_is_one_line_and_its_end_another(trial: Trial) -> None:
    """The server is away for a while, messages are in flight: few log lines, no try counted."""
    assert trial.proxy is not None
    trial.send_many(mixed(60, 10, work=0.05))
    worker = trial.spawn(threads=4).ready()
    until(lambda: len(trial.events()) > 20, "work is under way")
    trial.proxy.refuse()
    until(lambda: warnings_of(worker), "it is noticed")
    trial.pauses(4.0)
    trial.proxy.heal()
    trial.finish()
    until(lambda: "works again" in worker.err.read_text(), "its end is told")
    # A claim whose COMMIT got no answer is released, which is told too.
    lines = [line for line in warnings_of(worker) if "without a lane" not in line]
    assert "trying again" in lines[0]
    assert "works again" in lines[-1]
    assert len(lines) == 2, "\n".join(lines)
    assert_once(trial, finish(trial))


@pytest.mark.long
@ON_SERVERS
@proxied(lease=60.0)
def test_drain_gives_up_a_database_that_stays_away_and_run_does_not(trial: Trial) -> None:
    assert trial.proxy is not None
    trial.send_many(mixed(2000, 10, work=0.02))
    drains = trial.spawn(drain=True, outage_limit=1.5).ready()
    until(lambda: drains.pid in trial.pids_seen(), "it is at work")
    runs = trial.spawn().ready()
    until(lambda: runs.pid in trial.pids_seen(), "the other too")
    trial.proxy.refuse()
    assert drains.wait() == 3
    assert "database lost" in drains.out.read_text()
    assert runs.running, (runs.process.returncode, runs.err.read_text(), runs.out.read_text())
    trial.proxy.heal()
    trial.spawn(through=trial.sends_with, lease=3)  # recovers what the drain had in flight
    assert runs.stop() == 0


@pytest.mark.long
@ON_SERVERS
@proxied(lease=60.0)
def test_slow_line_is_slow_and_correct(trial: Trial) -> None:
    """F14: every packet takes its time."""
    assert trial.proxy is not None
    trial.proxy.delay_seconds = 0.05
    trial.send_many(mixed(60, 12, work=0.002))
    trial.spawn(threads=4)
    trial.spawn(threads=4, through=trial.sends_with)
    assert_once(trial, finish(trial))
