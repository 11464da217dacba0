"""Instances and producers of an earlier version's code, at work while the tables are upgraded, and
beside those of today afterwards; judged by their effects and by when each handler ran."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.table.build import NEWEST
from tests.support.programs import ROOT, environment
from tests.support.waiting import until
from tests.upgrade import kept
from tests.upgrade.program import EFFECTS

PROGRAM = Path(__file__).parent / "program.py"


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder with the package as it was at a version."""
    there: dict[int, Path] = {}

    def code(version: int) -> Path:
        if version not in there:
            folder = tmp_path_factory.mktemp(f"version{version}-")
            take_out(kept.COMMITS[version], folder)
            there[version] = folder
        return there[version]

    return code


def take_out(commit: str, folder: Path) -> None:
    """Unpack the package of a commit; skip the test where there is none."""
    if not (ROOT / ".git").exists():
        pytest.skip("code of earlier versions is in the history of git only, which is not here")
    archive = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "msgworker"]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this clone has no commit {commit}: {done.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)


@dataclass
class Run:
    """A program at work."""

    label: str
    folder: Path
    what: str
    process: subprocess.Popen[str]
    out: Path
    err: Path

    def ready(self) -> None:
        """Wait until it works, with the package in its folder."""
        until(lambda: "ready" in self.out.read_text() or self.process.poll() is not None, "ready")
        assert self.out.read_text() == f"ready {self.folder}\n", self.err.read_text()

    def stop(self) -> str:
        """End it in order; what it has printed."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.err.read_text()
        complaints = [line for line in self.err.read_text().splitlines() if "Error" in line]
        assert complaints == []
        return self.out.read_text()


Begin = Callable[..., list[Run]]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Where the programs write down when each handler ran."""
    return tmp_path / "records"


@pytest.fixture
def begin(database: Any, tmp_path: Path, records: Path) -> Iterator[Begin]:
    """Start programs, and wait until all work: of each its name, the folder of its code, and what
    it does."""
    begun: list[Run] = []

    def start(label: str, folder: Path, what: str) -> Run:
        out, err = (tmp_path / f"{label}.{end}" for end in ("out", "err"))
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), database.url, label, str(records), what],
                cwd=tmp_path,
                env=environment(PYTHONPATH=str(folder)),
                stdout=stdout,
                stderr=stderr,
                text=True,
            )
        begun.append(Run(label, folder, what, process, out, err))
        return begun[-1]

    def begin(*programs: tuple[str, Path, str]) -> list[Run]:
        runs = [start(*one) for one in programs]
        for run in runs:
            run.ready()
        return runs

    yield begin
    for run in begun:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait(60)


def effects(engine: sa.Engine) -> list[tuple[int, str | None, str]]:
    """(msg_id, object_id, who), in the order in which they were written."""
    with engine.connect() as conn:
        asked = sa.select(EFFECTS.c.msg_id, EFFECTS.c.object_id, EFFECTS.c.who)
        return [(row[0], row[1], row[2]) for row in conn.execute(asked.order_by(EFFECTS.c.id))]


def judge(engine: sa.Engine, records: Path, sent: int) -> None:
    """Every message is done and took effect once, each object's in order and one at a time."""
    written = effects(engine)
    assert len(written) == len({msg_id for msg_id, _, _ in written}) == sent
    with engine.connect() as conn:
        states = "SELECT status, error_try_times, count(*) FROM msgworker_message GROUP BY 1, 2"
        assert [tuple(row) for row in conn.exec_driver_sql(states)] == [(2, 0, sent)]
    calls = defaultdict(list)
    for line in records.read_text().splitlines():
        call = json.loads(line)
        calls[call["object_id"]].append((call["since"], call["until"], call["msg_id"]))
    assert sum(map(len, calls.values())) == sent, "a handler was called again"
    for mine in calls.values():
        for (_, ended, earlier), (began, _, later) in pairwise(sorted(mine)):
            assert earlier < later
            assert ended <= began


@pytest.mark.long
@pytest.mark.parametrize("version", range(1, NEWEST))
def test_code_of_an_earlier_version_goes_on_while_tables_are_upgraded(
    database: Any,
    make_app: Callable[..., App],
    code: Callable[[int], Path],
    begin: Begin,
    records: Path,
    version: int,
) -> None:
    old, engine = code(version), database.engine()
    kept.restore(engine, version, messages=False)
    EFFECTS.create(engine)
    app = make_app()
    running = begin(("old0", old, "work"))
    today = [("new0", ROOT, "work"), ("new-send0", ROOT, "send")]
    if version < 2:  # on the first one code of today asks for the upgrade
        today = []
    running += begin(("old1", old, "work"), ("old-send", old, "send"), *today)
    until(lambda: len(effects(engine)) > 40, "instances work")
    before = len(effects(engine))
    assert app.upgrade_schema().found == version
    until(lambda: len(effects(engine)) > before + 40, "they go on")
    running += begin(("new1", ROOT, "work"), ("new-send1", ROOT, "send"))
    workers = {run.label: run for run in running if run.what == "work"}
    after = len(effects(engine))
    until(
        lambda: {who for _, _, who in effects(engine)[after:]} == workers.keys(),
        "old and new instances work side by side",
    )
    sent = sum(int(run.stop().split()[-1]) for run in running if run.what == "send")
    until(lambda: len(effects(engine)) >= sent, "all is done")
    for run in workers.values():
        run.stop()
    judge(engine, records, sent)
    assert app.upgrade_schema().steps == ()
    (found,) = [one for one in app.ops.doctor() if one.check == "version"]
    assert f"version {NEWEST}" in found.text
