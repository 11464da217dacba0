"""What a program that starts does not import: it is what starting takes its time for."""

from __future__ import annotations

import json
import pkgutil

import pytest

import msgworker
from msgworker import doctor, ops, queries
from tests.support.programs import python

SQLALCHEMY = {"sqlalchemy"}
PARTS = {
    "alembic",
    "kazoo",
    "msgworker.metrics.counting",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "pydantic_core",
    "pymysql",
    "psycopg",
    "redis",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.oracle",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm",
    "tenacity",
    "wcwidth",
}


def imported_by(code: str) -> set[str]:
    """The modules that are there when a fresh interpreter has run the code."""
    telling = "; import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    return set(json.loads(python("-c", code + telling).stderr.splitlines()[-1]))


CALL = "from msgworker.cli import main\ntry: main({!r})\nexcept SystemExit: pass\npass"


@pytest.mark.parametrize(
    "code",
    [
        "import msgworker",
        "from msgworker import Reject, MsgworkerError",
        CALL.format(["--help"]),
        CALL.format(["--version"]),
    ],
    ids=["import", "errors", "--help", "--version"],
)
def test_no_database_is_needed_to_import_the_package_or_to_ask_for_help(code):
    assert imported_by(code) & (PARTS | SQLALCHEMY) == set()


def test_no_database_is_needed_to_refuse_a_command_line():
    assert imported_by(CALL.format(["no-such-command"])) & SQLALCHEMY == set()


def test_an_app_imports_what_its_database_and_its_handlers_need_and_no_more():
    code = (
        "from msgworker import App, Databases, Message; app = App('sqlite:///no-such-file.db')\n"
        "@app.handler('t')\ndef handle(msg: Message): pass\n"
        "pass"
    )
    found = imported_by(code)
    assert found & PARTS == set()
    assert "sqlalchemy.dialects.sqlite" in found


@pytest.mark.long
def test_a_look_imports_what_it_reads_with_and_no_more(tmp_path):
    code = (
        f"from msgworker import App; app = App('sqlite:///{tmp_path}/q.db'); app.create_schema()\n"
        "app.ops.find(limit=1)\n"
        "pass"
    )
    parts = ("coordination", "doctor", "web", "queries.counts", "queries.lanes", "queries.pages")
    assert imported_by(code) & {f"msgworker.{part}" for part in parts} == set()


@pytest.mark.long
def test_a_worker_that_is_made_has_imported_all_that_its_app_may_read_with(tmp_path):
    """No thread of an instance imports anything; `App.worker` names the modules."""
    code = (
        f"from msgworker import App; app = App('sqlite:///{tmp_path}/q.db')\n"
        "app.add_handler('t', print); app.worker()\n"
        "pass"
    )
    wanted = {
        part.name
        for package in (queries, ops, doctor)
        for part in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    }
    assert wanted - imported_by(code) == set()


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'msgworker' has no attribute 'Lane'"):
        msgworker.Lane  # noqa: B018


def test_the_summaries_of_help_fit_into_a_line():
    help_text = python("-m", "msgworker", "--help").stdout
    commands = help_text.partition("Commands:")[2].partition("Exit codes:")[0]
    lines = [line for line in commands.splitlines() if line.strip()]
    assert all(line.startswith("  ") and line[2].islower() for line in lines)  # no second lines
    assert max(map(len, lines)) <= 80


WITHOUT_UNIX = """
import os, pkgutil, importlib, signal, subprocess, sys
for name in ("fork", "forkpty", "register_at_fork", "geteuid", "getuid", "setsid", "killpg",
             "getpgid", "fchmod", "sched_getaffinity", "waitpid", "wait"):
    delattr(os, name) if hasattr(os, name) else None
for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGKILL", "SIGSTOP",
             "SIGCONT", "SIGPIPE", "pthread_sigmask", "setitimer"):
    delattr(signal, name) if hasattr(signal, name) else None
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
import msgworker
from msgworker import App
for part in pkgutil.walk_packages(msgworker.__path__, "msgworker."):
    if "contrib" not in part.name and not part.name.endswith("__main__"):
        importlib.import_module(part.name)
app = App(sys.argv[1])
app.create_schema()
app.handler("t")(lambda msg: None)
with app.engine.begin() as conn:
    app.send(conn, "t", {})
with app.worker(threads=2) as worker:
    worker.run(signals=True, time_limit=0.5)
assert app.ops.counts()[0].status == "done"
"""


@pytest.mark.long
def test_a_worker_runs_without_what_only_unix_has(tmp_path) -> None:
    """As on Windows: taken away before the import, as far as that tells."""
    done = python("-c", WITHOUT_UNIX, f"sqlite:///{tmp_path / 'q.db'}")
    assert (done.returncode, done.stderr) == (0, "")
