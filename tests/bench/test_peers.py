"""Other queues beside ours: their logs are read, their failures shown, none is left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.parts import Run
from bench.peers import install as installing
from bench.peers import turns
from bench.peers.__main__ import legend
from bench.peers.install import NotInstalled
from bench.peers.peer import ASKED, PEERS, PROMISES, SCRIPTS, Peer
from bench.peers.running import Job, PeerFailed, Work, note, read
from bench.performance import DOCS, PAGE
from bench.report import Line, table

KEPT_ELSEWHERE = ("pgqueuer", "awa")
"""Their finished jobs move to another table, which keeps how they ended."""
WORK = Work("B2", "1,000 objects", "ordered", messages=3, objects=2, seconds=5.0)


def fake(manager: str = "pip", **fields: object) -> Peer:
    values = {"packages": ("queue==1.0",), "script": "x.py", "setup": "as it comes", **fields}
    return Peer("queue", manager, **values)  # type: ignore[arg-type]


def line() -> Line:
    return Line("postgresql", "B2", "queue 1.0: 1,000 objects")


def test_order_and_overlap_of_a_peer_are_judged_as_ours_are():
    shown = line()
    note(WORK, shown, [read("2\ta\t10\t20\n1\ta\t15\t30\n3\tb\t1000\t1000000010\n")])
    assert (shown.order_faults, shown.overlaps, shown.missing) == (1, 1, 0)
    assert shown.rates == [pytest.approx(3.0)]


def test_a_batch_alone_gives_no_rate_but_that_of_the_whole_time():
    shown = line()
    note(WORK, shown, [read("1\ta\t10\t20\n2\ta\t30\t40\n")])
    assert shown.rates == [pytest.approx(2 / WORK.seconds)]
    assert shown.notes == ["2 handled when 5 s were over"]


@pytest.mark.parametrize(
    ("peer", "command", "shown"),
    [
        (fake(lacks={"ordered": "not offered: no order"}), ["x"], "not offered: no order"),
        (fake(), "not installed: npm is not there", "not installed: npm is not there"),
        (fake(), ["/nowhere/python", "x.py"], "failed: "),
    ],
    ids=["lacks", "not installed", "fails"],
)
def test_a_peer_that_does_not_run_has_a_line_that_says_why(peer, command, shown, monkeypatch):
    def fails(*_: object) -> None:
        raise PeerFailed("it is broken")

    monkeypatch.setattr(turns, "measure", fails)
    one = line()
    turns.their_turn(peer, command, WORK, one)
    assert shown in str(one.not_run)
    assert f"not run: {shown}" in table([one])


def test_every_kind_of_work_is_asked_of_everybody():
    asked = list(turns.works(turns.QUICK, backlog=True))
    assert {work.kind for work in asked} == set(turns.KINDS)
    assert sum(work.finished > 0 for work in asked) == 2
    assert {peer.name for peer in PEERS} == {
        *("msgworker", "procrastinate", "pgqueuer", "awa", "graphile-worker", "pg-boss"),
        *("dbos", "pgmq"),
    }


def test_a_row_says_what_a_queue_does_not_do_of_what_is_asked():
    peer = fake(without=("order", "row"))
    lines = [turns.line_of(peer, work) for work in turns.works(turns.QUICK, backlog=False)]
    assert [one.without for one in lines] == ["row", "order, row", "row", "row", "order, row"]
    assert ASKED.keys() == {*turns.KINDS}
    assert [text.split(":")[0] for text in legend(lines)][1:] == ["  order", "  row"]
    lines[1].not_run = "not offered"
    assert re.search(r"order, row +not run: not offered", table(lines))
    assert not [*legend([line()])]


def test_what_is_not_offered_stands_among_what_a_queue_is_without():
    for peer in PEERS:
        assert all(kind in peer.missing(kind) for kind in peer.lacks), peer.name
        assert "row" in peer.without or peer.keeps_done or peer.name in KEPT_ELSEWHERE


def test_the_docs_say_what_is_asked_in_the_words_of_the_table():
    page = (DOCS / PAGE).read_text()
    for word, text in PROMISES.items():
        assert f"  * **{word}**: {text}\n" in page
    assert "**Solid Queue** is not measured" in page


def test_a_release_of_ours_is_a_peer_whose_faults_are_not_ours():
    ours, theirs = line(), line()
    ours.label, theirs.label = "msgworker: unordered", "msgworker 0.2.0: unordered"
    ours.missing, theirs.missing = 1, 2
    assert Run(peers=[ours, theirs]).faults == 1


def test_a_release_that_the_history_lacks_is_not_installed_and_says_why(tmp_path):
    peer = fake("release", packages=("msgworker==999.0.0",))
    with pytest.raises(NotInstalled, match=r"no commit .*shallow clone.*git fetch --unshallow"):
        installing.install(peer, tmp_path)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_is_pinned_and_has_its_script(peer):
    assert re.fullmatch(r"\d+\.\d+\.\d+", peer.version)
    assert (SCRIPTS / peer.script).is_file()


def test_a_script_seeds_in_order_and_writes_its_log(tmp_path):
    """What the Python scripts share, with a peer that does everything at once."""
    log = tmp_path / "log"
    script = tmp_path / "peer.py"
    script.write_text(
        f"import sys, time; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from common import chunks, key, main, note, until_over\n"
        "async def work():\n"
        "    for numbers in chunks():\n"
        "        for i in numbers: note(i, key(i), time.monotonic_ns())\n"
        "    await until_over()\n"
        "main(setup=None, work=work, send=None)\n"
    )
    job = {"step": "work", "kind": "ordered", "dsn": "", "messages": 7, "finished": 0}
    job |= {"objects": 2, "seconds": 5.0, "log": str(log)}
    assert job.keys() == {*Job.__slots__}
    variables = {"MSGWORKER_PEER_JOB": json.dumps(job)}
    subprocess.run([sys.executable, str(script)], env=variables, check=True, timeout=60)
    entries = read(log.read_text())
    assert [number for _, number, _, _ in entries] == [1, 2, 3, 4, 5, 6, 7]
    assert {object_id for object_id, _, _, _ in entries} == {"obj00000000", "obj00000001"}


def test_no_file_of_the_bench_names_a_registry():
    hosts = re.compile(r"https?://(?!www\.w3\.org|127\.0\.0\.1)|\bregistry[.=]")
    for path in Path(installing.__file__).parents[1].rglob("*.*"):
        if path.suffix in (".py", ".mjs"):
            assert not hosts.search(path.read_text()), path
