"""Why a message does not run: one decision and one sentence for each case."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from msgworker.message import State
from msgworker.queries.explain import Asked, Facts, Verdict, World, sentence, verdict
from msgworker.queries.instances import InstanceInfo, Life, TopicLimit
from msgworker.table.columns import Slice

LIVE = InstanceInfo("live", Life.LIVE, topics=("t",))
DEAD = InstanceInfo("dead", Life.DEAD)
SILENT = InstanceInfo("silent", Life.LIVE, overdue_seconds=20.0, topics=())
STOPPED = InstanceInfo("stopped", Life.LIVE, stopped=True)
AT = datetime(2026, 11, 1, tzinfo=UTC)
PAUSED = {"t": "anna"}
FULL = {"t": TopicLimit("t", 1, 1, {}, None, None, None, None, "live", AT, None)}

NEW = Facts(status=State.NEW, topic="t")
FAILED = Facts(status=State.FAILED, topic="t", due=False)
HELD = Facts(status=State.PROCESSING)
OPEN = World(who=[LIVE])
NOBODY = World()
UNNAMED = World(names_owners=False)
ME = World(asked=Asked(topics=("t",), me=("me",)))
CHOSEN = World(asked=Asked(topics=("u",), chosen=True))
OTHERS = World(asked=Asked(topics=("u",)))
OF_A_JOB = World(asked=Asked(topics=("t",), within=Slice("job_id", (7,))))

CASES: list[tuple[Facts, World, Verdict, str]] = [
    # What has ended, or never runs.
    (replace(NEW, status=State.DONE), OPEN, Verdict.DONE, "it is done"),
    (replace(NEW, status=State.DEAD), ME, Verdict.DEAD, "it is dead"),
    (replace(NEW, status=State.UNKNOWN), OPEN, Verdict.UNKNOWN, "fix the status"),
    # Who has it.
    (replace(HELD, owner="live"), OPEN, Verdict.RUNNING, "running on live"),
    (replace(HELD, owner="silent"), World([SILENT]), Verdict.SILENT, "overdue for 20 s"),
    (replace(HELD, owner="stopped"), World([STOPPED]), Verdict.SILENT, "outlived the grace time"),
    (replace(HELD, owner="me"), ME, Verdict.OWN, "running on me"),
    (replace(HELD, owner="gone"), OPEN, Verdict.RECOVERED, "it has no lease; another instance"),
    (replace(HELD, owner="dead"), World([DEAD]), Verdict.ABANDONED, "its lease has run out"),
    (replace(HELD, owner="dead"), World([DEAD, STOPPED]), Verdict.ABANDONED, "is started"),
    (HELD, OPEN, Verdict.UNOWNED, "--nobody --older-than 1h"),
    (replace(HELD, dated=False), OPEN, Verdict.UNOWNED, "--nobody --any-age"),
    (HELD, UNNAMED, Verdict.UNOWNED, "no column claimed_by"),
    (HELD, replace(UNNAMED, who=[LIVE]), Verdict.UNNAMED, "no column claimed_by"),
    (HELD, replace(UNNAMED, who=[STOPPED]), Verdict.UNNAMED, "no column claimed_by"),
    (HELD, replace(ME, names_owners=False, who=[STOPPED]), Verdict.UNOWNED, "no column claimed_by"),
    # What lasts until an operator acts comes before what ends by itself.
    (replace(NEW, unseen="no shard", due=False), OPEN, Verdict.OTHER_SLICES, "no shard"),
    # Before a message of the job that a drain handles: what holds it back from others, too.
    (replace(NEW, unseen="of no job"), OF_A_JOB, Verdict.OTHER_JOBS, "nothing holds it back"),
    (replace(NEW, unseen="of no job", due=False), OF_A_JOB, Verdict.LATER, "not due yet"),
    (replace(FAILED, unseen="of no job"), OF_A_JOB, Verdict.RETRY, "back-off"),
    (replace(NEW, unseen="of no job", held="job 8"), OF_A_JOB, Verdict.HELD, "job 8"),
    (
        replace(HELD, unseen="of no job", owner="live"),
        replace(OF_A_JOB, who=[LIVE]),
        Verdict.OTHER_JOBS,
        "running on live",
    ),
    (replace(HELD, unseen="of no job"), OF_A_JOB, Verdict.UNOWNED, "a foreign consumer"),
    (replace(NEW, due=False), replace(OPEN, paused=PAUSED), Verdict.LATER, "not due yet"),
    (replace(NEW, held="job 7 is paused"), NOBODY, Verdict.HELD, "job 7 is paused"),
    (replace(NEW, held="job 7 is paused", due=False), OPEN, Verdict.LATER, "not due yet"),
    (FAILED, replace(OPEN, paused=PAUSED), Verdict.PAUSED, "topic t is paused by anna"),
    (replace(FAILED, topic="u"), OPEN, Verdict.NO_HANDLER, "none of the 1 live instances"),
    (FAILED, NOBODY, Verdict.RETRY, "back-off"),
    (FAILED, replace(OPEN, limits=lambda: FULL), Verdict.RETRY, "back-off"),
    (NEW, NOBODY, Verdict.NO_INSTANCE, "start one"),
    (NEW, World([STOPPED]), Verdict.NO_INSTANCE, "start one"),
    (NEW, replace(OPEN, limits=lambda: FULL), Verdict.LIMITED, "it waits for a permit of t"),
    (replace(NEW, refused=(LIVE, "CHECK")), OPEN, Verdict.REFUSED, "refuses to let live flag it"),
    (replace(NEW, alone=True), OPEN, Verdict.QUARANTINE, "runs alone"),
    (NEW, OPEN, Verdict.NEXT, "nothing holds it back"),
    # An instance that asks for itself.
    (NEW, ME, Verdict.NEXT, "nothing holds it back"),
    (NEW, OTHERS, Verdict.NO_HANDLER, "neither this instance nor another live one"),
    (FAILED, OTHERS, Verdict.NO_HANDLER, "for topic t"),
    (replace(NEW, due=False), OTHERS, Verdict.LATER, "not due yet"),
    (NEW, CHOSEN, Verdict.OTHER_TOPICS, "not asked to handle topic t"),
    (FAILED, replace(OTHERS, who=[LIVE]), Verdict.ELSEWHERE, "another live instance"),
    (NEW, replace(OTHERS, who=[SILENT]), Verdict.NO_HANDLER, "neither this instance"),
]


@pytest.mark.parametrize(("row", "world", "wanted", "said"), CASES)
def test_a_message_waits_for_one_reason_and_it_is_said(row, world, wanted, said):
    found = verdict(row, world)
    assert (found, said in sentence(found, row, world)) == (wanted, True)


def test_every_verdict_is_in_the_table():
    assert {wanted for _, _, wanted, _ in CASES} == set(Verdict)


def test_limits_are_read_only_for_what_nothing_else_holds_back():
    def read():
        raise AssertionError("the limits were read")

    assert verdict(FAILED, World([LIVE], limits=read)) is Verdict.RETRY
