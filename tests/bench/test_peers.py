"""Other queues beside ours: their logs are read, their failures shown, none is left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import install as installing
from bench.peers import turns
from bench.peers.install import NotInstalled, install
from bench.peers.peer import PEERS, SCRIPTS, Peer
from bench.peers.running import Job, PeerFailed, Work, note, read, why
from bench.report import Line, cells, table

WORK = Work("B2", "1,000 objects", "ordered", messages=3, objects=2, seconds=5.0)


def fake(manager: str = "pip", **fields: object) -> Peer:
    values = {"packages": ("queue==1.0",), "script": "x.py", "setup": "as it comes", **fields}
    return Peer("queue", manager, **values)  # type: ignore[arg-type]


def line() -> Line:
    return Line("postgresql", "B2", "queue 1.0: 1,000 objects")


def test_a_log_of_a_peer_is_read_and_no_object_is_none():
    assert read("1\tobj1\t10\t20\n2\t\t30\t40\n") == [("obj1", 1, 10, 20), (None, 2, 30, 40)]


@pytest.mark.parametrize("text", ["1\tobj1\t10\n", "x\tobj1\t10\t20\n", "ready\n"])
def test_a_log_that_cannot_be_read_fails_the_peer(text):
    with pytest.raises(PeerFailed, match="cannot be read"):
        read(text)


def test_order_and_overlap_of_a_peer_are_judged_as_ours_are():
    shown = line()
    note(WORK, shown, [read("2\ta\t10\t20\n1\ta\t15\t30\n3\tb\t1000\t1000000010\n")])
    assert (shown.order_faults, shown.overlaps, shown.missing) == (1, 1, 0)
    assert shown.rates == [pytest.approx(3.0)]


def test_a_job_that_a_peer_handled_twice_is_counted():
    shown = line()
    note(WORK, shown, [read("1\ta\t10\t20\n2\ta\t30\t40\n1\ta\t50\t60\n")])
    assert shown.missing == 1


def test_what_was_not_handled_in_time_is_said():
    shown = line()
    note(WORK, shown, [read("1\ta\t10\t20\n")])
    assert shown.notes == ["1 handled when 5 s were over"]


def test_a_peer_that_handles_nothing_has_failed():
    with pytest.raises(PeerFailed, match="nothing was handled in 5 s"):
        note(WORK, line(), [[]])


def test_the_error_of_a_peer_is_the_line_that_names_it():
    said = "Traceback:\n  File x\nqueue.ValidationError: no such queue\n    at main (x.mjs:3)\n"
    assert why(said) == "queue.ValidationError: no such queue"
    assert why("killed\n") == "killed"
    assert why("") == ""


def test_a_peer_without_npm_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(installing.shutil, "which", lambda name: None)
    with pytest.raises(NotInstalled, match="apt-get install npm"):
        install(fake("npm", packages=("queue@1.0",)), tmp_path)


def test_a_peer_whose_package_cannot_be_had_says_what_its_manager_said(tmp_path, monkeypatch):
    python = tmp_path / "queue" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ERROR: no matching distribution' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(installing.sys, "executable", "/bin/true")  # makes no environment
    with pytest.raises(NotInstalled, match="python could not install it: ERROR: no matching"):
        install(fake(), tmp_path)
    assert not (tmp_path / "queue" / "installed").exists()


def test_an_old_node_gets_a_newer_one_beside_it(tmp_path, monkeypatch):
    said = tmp_path / "said"
    for name, script in {
        "node": "echo v18.20.4",
        "npm": f'echo "$@" > {said}; mkdir -p node_modules/.bin; cp $0.node node_modules/.bin/node',
        "npm.node": "echo v22.23.3",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(installing.shutil, "which", lambda name: str(tmp_path / name))
    command = install(fake("npm", packages=("queue@1.0",), script="x.mjs"), tmp_path)
    assert said.read_text().split()[-2:] == ["queue@1.0", "node@22"]
    assert command[0].endswith("queue/node_modules/.bin/node")


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


def test_the_table_says_how_much_of_ours_a_peer_does():
    ours, theirs = line(), line()
    ours.rates, theirs.rates, theirs.ours = [200.0], [50.0], [200.0]
    rows = cells([ours, theirs])
    at = rows[0].index("of msgworker")
    assert [row[at] for row in rows[1:]] == ["-", "0.25"]


def test_a_column_that_nobody_fills_is_left_out():
    one = line()
    one.rates = [1.0]
    assert "of prototype" not in table([one])


def test_every_kind_of_work_is_asked_of_everybody():
    asked = list(turns.works(turns.QUICK, backlog=True))
    assert {work.kind for work in asked} == set(turns.KINDS)
    assert sum(work.finished > 0 for work in asked) == 2
    assert {peer.name for peer in PEERS} == {
        *("procrastinate", "pgqueuer", "awa", "graphile-worker", "pg-boss"),
    }


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
