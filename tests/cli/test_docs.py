"""Every command, option and setting is documented, and what is documented is there."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner

import msgworker
from msgworker import App, ops
from msgworker.app import settings_of, table_from
from msgworker.cli import main
from msgworker.cli.group import COMMANDS
from msgworker.cli.output import NothingMatched, Usage
from msgworker.cli.work import unused
from msgworker.config import SETTINGS, load
from msgworker.coordination import DatabaseLocks
from msgworker.errors import ExitCode
from msgworker.store import audit
from msgworker.table.build import VERSIONS
from tests.support.programs import LOOKS, ROOT, Cli, python
from tests.support.waiting import launched

CLI = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
SHARED = {"--url", "--table", "--where", "--on-dead", "--max-tries", "--app", "--json"}
EVERYWHERE = {"--config", "--log-level", "--log-format", "--debug", "--help"}


def section(command: str) -> str:
    found = re.search(rf"^### `msgworker {command}\b.*?(?=^##|\Z)", CLI, re.M | re.S)
    assert found, f"docs/reference/cli.md has no section for {command}"
    return found[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_documented_with_its_options(name: str) -> None:
    text = section(name) + (section("run") if name == "drain" else "")
    command = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
    options = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    }
    if name == "config":  # it takes the flags of all settings
        options -= {f"--{setting.replace('_', '-')}" for setting in SETTINGS} | {"--topic"}
    lacking = sorted(o for o in options - SHARED - EVERYWHERE if o not in text)
    assert not lacking, f"docs/reference/cli.md says nothing of {name} {lacking}"
    if "--json" in options:
        assert "--json" in text


def test_no_command_is_documented_that_is_not_there() -> None:
    assert re.findall(r"^### `msgworker ([\w-]+)", CLI, re.M) == list(COMMANDS)


def test_options_of_every_command_are_documented() -> None:
    assert all(option in CLI for option in SHARED | EVERYWHERE)


def test_every_setting_is_documented_with_its_variable_and_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `?([^|`]*)`? \| (.+) \|$", CONFIGURATION, re.M)
    assert [row[0] for row in rows] == list(SETTINGS)
    words = {None: "none", (): "none", "{}": "none", False: "false"}
    for name, variable, default, _ in rows:
        setting = SETTINGS[name]
        value = setting.default if setting.default != {} else "{}"
        is_word = value is None or value is False or value in ((), "{}")
        shown = (
            words[value] if is_word else f"{value:g}" if isinstance(value, float) else str(value)
        )
        shown = "all" if name == "topics" else shown
        assert (variable, default) == (setting.variable, shown), name


def test_the_example_file_is_read(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", CONFIGURATION, re.S)
    assert example
    assert set(tomllib.loads(example[1])) <= set(SETTINGS)
    (tmp_path / "msgworker.toml").write_text(example[1])
    conf = load(folder=tmp_path, environ={"DB_PASSWORD": "p@ss"})
    assert conf.url == "postgresql+psycopg://crm:p%40ss@dbhost/crm"
    table = table_from(conf)
    assert (table.name, table.msg_id, table.payload) == ("crm.tb_cus_msg", "msgID", None)


def test_the_examples_of_the_page_warn_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = re.search(r"```toml\n(.*?)```", CONFIGURATION, re.S)
    programs = re.findall(r"```python\n(.*?)```", CONFIGURATION, re.S)
    assert example
    assert programs
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DB_PASSWORD", "a+b c@")
    (tmp_path / "msgworker.toml").write_text(example[1])
    for program in programs:
        made: dict[str, Any] = {}
        exec(program, made)
        assert unused(load(), settings_of(made["app"])) == []


AS_IN = {"show": ("list", "audit"), "status": ("limits",)}
"""Commands whose --json has the keys of others, too, as their sections say."""


def keys_of(value: Any) -> set[str]:
    """The keys of an answer, of what it lists, and of what that lists."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys_of(one) for one in value.values() if isinstance(one, list)))


def test_every_key_of_json_is_documented(crm: Cli, app: App) -> None:
    app.add_handler("settle", lambda msg: {}[msg.payload], max_running=4, rate="9/s")
    app.add_handler("done", lambda msg, ctx: ctx.fan_out(len, ["a"]))
    app.every("1h", topic="settle", name="hourly")
    with app.engine.begin() as conn, app.job("a", conn=conn) as job:
        app.send_many(conn, "settle", [(n, "C-1") for n in range(2)], job=job)
        app.send(conn, "done")
    app.drain(threads=1, linger=0)
    app.ops.edit(1, payload={}, reason="r")
    app.ops.pause("done")
    app.ops.pause_job(1, reason="r")
    locks = DatabaseLocks(app.engine)
    locks.acquire("a", "me", 30)
    lacking = []
    with launched(app.worker(threads=1)):
        for look in LOOKS:
            done = crm(*look.split(), "--app", "crm:app", "--json")
            name = look.split()[0]
            text = "".join(section(one) for one in (name, *AS_IN.get(name, ())))
            kinds = [getattr(ops, one) for one in re.findall(r"`(\w+)`\]\(python/ops", text)]
            text += " ".join(one.name for kind in kinds for one in fields(kind))
            keys = keys_of(json.loads(done.stdout or "{}"))
            assert keys or name == "partitions", (look, done.stderr)
            lacking += [f"{name} {k}" for k in sorted(keys) if not re.search(rf"\b{k}\b", text)]
    locks.close()
    assert ", ".join(lacking) == ""


def test_every_kind_of_operation_is_documented() -> None:
    kinds = get_args(audit.Kind)
    assert len(kinds) > 15
    assert [kind for kind in kinds if not re.search(rf"\b{kind}\b", section("audit"))] == []


def test_exit_codes_are_in_one_table_of_code_and_page() -> None:
    table = CLI.partition("## Exit codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", table, re.M)
    assert [int(code) for code, _ in rows] == list(ExitCode)
    for code, text in rows:  # the page may say more
        assert text.startswith(ExitCode(int(code)).means), code
    help_text = " ".join(CliRunner().invoke(main, ["--help"]).stdout.split())
    assert all(f"{code} {code.means}" in help_text for code in ExitCode)


def test_every_version_of_the_schema_is_documented() -> None:
    page = (ROOT / "docs" / "operate" / "upgrading.md").read_text(encoding="utf-8")
    table = page.partition("\n| version |")[2].partition("\n\n")[0]
    numbers = re.findall(r"^\| (\d+) \|", table, re.M)
    assert numbers == [str(version.number) for version in VERSIONS]
    assert f'"version": {numbers[-1]},' in page


def test_no_exit_code_is_used_that_is_not_in_the_table() -> None:
    errors = [error for error in vars(msgworker.errors).values() if hasattr(error, "exit_code")]
    assert len(errors) > 10
    assert {error.exit_code for error in [*errors, Usage, NothingMatched]} <= set(ExitCode)
    for path in (ROOT / "msgworker").rglob("*.py"):
        found = re.findall(r"exit_code\b[^=\n]*= (\d+)|sys\.exit\((\d+)\)", path.read_text())
        assert found == [] or "demo" in path.parts, path


# ---------------------------------------------------------------- logging

OPERATIONS = (ROOT / "docs" / "operate" / "operations.md").read_text(encoding="utf-8")
LOGGING = OPERATIONS.split("## Logging\n")[1].split("\n## ")[0]


def test_every_logger_is_documented_and_no_other() -> None:
    source = "\n".join(p.read_text() for p in (ROOT / "msgworker").rglob("*.py"))
    used = set(re.findall(r'\b(?:getL|l)ogger\("(msgworker\.\w+)"', source))
    assert set(re.findall(r"^\| `(msgworker\.\w+)`", LOGGING, re.M)) == used


def test_the_logging_set_up_of_the_documents_shows_what_handlers_log() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", LOGGING, re.S)
    program = block + (
        "log = logging.getLogger('msgworker.handler')\n"
        "log.debug('posted', extra={'instance': 'vm-1', 'topic': 't', 'msg_id': 7})\n"
        "logging.getLogger('msgworker.app').warning('odd')\n"
        "logging.getLogger('msgworker.instance').debug('not shown')\n"
    )
    done = python("-c", program)
    lines = [line.split(" ", 2)[2] for line in done.stderr.splitlines()]
    assert lines == [
        "DEBUG msgworker.handler [vm-1 t 7] posted",
        "WARNING msgworker.app [- - -] odd",
    ]
