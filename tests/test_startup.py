"""What a program that starts does not import: it is what starting takes its time for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import msgworker

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
    "rich",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.oracle",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm",
    "tenacity",
}


def imported_by(code: str) -> set[str]:
    """The modules that are there when a fresh interpreter has run the code."""
    telling = "; import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + telling], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


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
        "app.worker()"
    )
    found = imported_by(code)
    assert found & PARTS == set()
    assert "sqlalchemy.dialects.sqlite" in found


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'msgworker' has no attribute 'Job'"):
        msgworker.Job  # noqa: B018


def test_the_summaries_of_help_fit_into_a_line():
    help_text = subprocess.run(
        [sys.executable, "-m", "msgworker", "--help"], capture_output=True, text=True, check=True
    ).stdout
    commands = help_text.partition("Commands:")[2].partition("Exit codes:")[0]
    lines = [line for line in commands.splitlines() if line.strip()]
    assert all(line.startswith("  ") and line[2].islower() for line in lines)  # no second lines
    assert max(map(len, lines)) <= 80
