"""The databases of the tests are real, fresh and apart from each other, and end with the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.names import ROOT
from tests.plugin import Database
from tests.support.waiting import until

pytestmark = pytest.mark.quick


def test_database_is_fresh_and_takes_writes(database: Database) -> None:
    engine = database.engine()
    assert sa.inspect(engine).get_table_names() == []

    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE t (i INTEGER)"))
        conn.execute(sa.text("INSERT INTO t VALUES (1)"))

    with engine.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM t")) == 1


KILLED = """
import os, signal
from tests.servers import Server

class Sleeper(Server):
    name = "sleeper"
    def command(self): return ["sleep", "60"]
    def answers(self): return True

server = Sleeper()
server.start()
print(server.process.pid, server.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_ends_with_a_process_that_is_killed() -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    pid, folder = killed.stdout.split()
    assert killed.returncode == -9
    until(lambda: not Path(folder).exists(), "its folder is removed")
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", pid], stdout=subprocess.PIPE, text=True, check=False
    )
    assert state.stdout[:1] in ("", "Z"), "it still runs"
