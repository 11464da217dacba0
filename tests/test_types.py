"""What type checkers and editors know of the public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from msgworker import App, BatchContext, Databases
from msgworker.config.keywords import Keywords
from msgworker.declaring import HandlerOptions
from msgworker.events import EVENTS, EventName
from msgworker.message import State, StateName
from msgworker.producing import AllSendOptions, ManyOptions
from msgworker.table.columns import COLUMNS, Cols, Columns
from msgworker.table.spec import MessageTable
from msgworker.web.access import Role, RoleName
from tests import keywords

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "tests" / "typing" / name for name in ("good.py", "bad.py")]


def marked() -> set[tuple[str, int]]:
    return {
        (path.name, number)
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("# error")
    }


def named(output: str) -> set[tuple[str, int]]:
    """The lines that a type checker calls wrong."""
    found = re.findall(r"(good|bad)\.py:(\d+)(?::\d+)?(?: -|:) error", output)
    return {(f"{name}.py", int(number)) for name, number in found}


def run(*command: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command), *FILES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr.strip(), done.stderr
    return done.stdout


@pytest.mark.long
def test_mypy_finds_every_mistake_of_a_user_and_no_other() -> None:
    out = run("mypy", "--strict", "--config-file=", "--cache-dir=.mypy_users_cache")
    assert named(out) == marked(), out


@pytest.mark.long
def test_pyright_finds_every_mistake_of_a_user_and_no_other() -> None:
    pytest.importorskip("pyright")
    try:
        run("pyright", "--version")
    except AssertionError as error:
        pytest.skip(f"pyright cannot be had: {error!s:.80}")  # it installs itself by npm
    out = run("pyright", "--pythonpath", sys.executable)
    assert named(out) == marked(), out


def test_each_setting_is_a_keyword_with_the_text_that_editors_show() -> None:
    made = (ROOT / "msgworker" / "config" / "keywords.py").read_text()
    assert made == keywords.module(), "run `make keywords`"


def test_words_for_type_checkers_are_those_that_are_taken() -> None:
    assert set(get_args(EventName)) == EVENTS.keys()
    assert get_args(StateName) == tuple(State)
    assert [Role.of(word) for word in get_args(RoleName)] == list(Role)
    assert Columns.__annotations__.keys() == set(COLUMNS)
    assert tuple(field.name for field in dataclasses.fields(Cols)) == COLUMNS
    assert tuple(f.name for f in dataclasses.fields(MessageTable))[: len(COLUMNS)] == COLUMNS


def test_options_for_type_checkers_are_those_that_are_taken() -> None:
    def of(fn: object, *but: str) -> set[str]:
        given = inspect.signature(fn).parameters.values()  # type: ignore[arg-type]
        return {one.name for one in given if one.kind is one.KEYWORD_ONLY} - set(but)

    assert HandlerOptions.__annotations__.keys() == of(
        App.handler, "transactional", "batch", "group"
    )
    assert AllSendOptions.__annotations__.keys() >= of(App.send)
    assert ManyOptions.__annotations__.keys() == of(App.send_many)
    assert of(BatchContext.send) == {"of", "job"}
    assert Databases.handler is App.handler
    assert Keywords.__total__ is False
