"""The user's code in a traceback, and its text for readers."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from msgworker.errors import PayloadError
from msgworker.instance.running.outcome import describe
from msgworker.instance.running.traceback import (
    home_of,
    library_of,
    place_of,
    trace_of,
    trim,
    where,
)
from msgworker.payload import decode

Install = Callable[..., ModuleType]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a module into a folder and import it; `site-packages` is where libraries stand."""
    made: list[str] = []

    def make(name: str, text: str, folder: str = "site-packages") -> ModuleType:
        path = tmp_path / folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in {*made, *(name.partition(".")[0] for name in made)}:
        sys.modules.pop(name, None)


def caught(fn: Callable[..., Any], *args: Any) -> BaseException:
    try:
        fn(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def parse(text: str) -> Any:
    return json.loads(text)


def line_of(fn: Callable[..., Any], offset: int = 1) -> int:
    return int(fn.__code__.co_firstlineno) + offset


# ---------------------------------------------------------------- place


def test_the_place_of_an_error_is_in_the_users_code_and_not_in_the_standard_library():
    error = caught(parse, "{")
    assert place_of(error) == f"test_traceback.py:{line_of(parse)} in parse"
    assert describe(error).endswith(f" [test_traceback.py:{line_of(parse)} in parse]")


def test_the_place_of_an_error_is_not_in_a_library(install):
    library = install("driverish.cursor", "def execute(sql):\n    raise ValueError(sql)\n")

    def post() -> None:
        library.execute("x")

    assert place_of(caught(post)) == f"test_traceback.py:{line_of(post)} in post"


def test_the_place_of_an_error_is_not_in_our_own_code():
    def read() -> None:
        decode("{")

    error = caught(read)
    assert isinstance(error, PayloadError)
    assert place_of(error) == f"test_traceback.py:{line_of(read)} in read"
    assert place_of(caught(decode, "{")) == f"test_traceback.py:{line_of(caught, 2)} in caught"


def test_the_place_of_an_error_is_not_in_made_up_code():
    made: dict[str, Any] = {}
    exec("def made():\n    raise ValueError\n", made)
    assert place_of(caught(made["made"])) == f"test_traceback.py:{line_of(caught, 2)} in caught"


def bare(fn: Callable[..., Any], *args: Any) -> BaseException:
    """The error as it would come were the caller a part of msgworker."""
    error = caught(fn, *args)
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


def test_where_all_code_is_installed_the_package_of_the_handler_is_the_users(install):
    install("driverish.cursor", "def execute(sql):\n    raise ValueError(sql)\n")
    install("crm.ledger", "from driverish import cursor\ndef post():\n    cursor.execute('x')\n")
    jobs = install("crm.jobs", "from crm import ledger\ndef settle(msg):\n    ledger.post()\n")
    error = bare(jobs.settle, None)
    assert place_of(error, home_of(jobs.settle)) == "ledger.py:3 in post"
    assert place_of(error) == "ledger.py:3 in post"  # the package that was called first
    text = trace_of(error, home_of(jobs.settle))
    assert text is not None
    assert "1 frame of driverish" in text
    assert "cursor.execute('x')" in text


def test_an_error_between_us_and_a_library_has_no_place(install):
    library = install("driverish.cursor", "def commit():\n    raise ValueError\n")
    error = bare(library.commit)
    assert place_of(error, __file__) is None
    assert trace_of(error, __file__) is None


def test_the_standard_library_is_never_the_users_code():
    error = bare(json.loads, "{")
    assert place_of(error) is None
    assert place_of(error, __file__) is None
    assert trace_of(error) is None


def test_code_without_a_file_is_the_users_where_there_is_nothing_else():
    made: dict[str, Any] = {}
    exec("import json\ndef made():\n    json.loads('{')\n", made)
    error = bare(made["made"])
    assert place_of(error, home_of(made["made"])) == "<string>:3 in made"
    assert place_of(error) == "<string>:3 in made"


def test_a_handler_is_found_under_decorators_and_partials():
    @functools.wraps(parse)
    def wrapped(text: str) -> Any:
        return parse(text)

    class Called:
        def __call__(self, msg: Any) -> None: ...

    class Odd:
        @property
        def __wrapped__(self) -> Any:
            raise ValueError

    for fn in (parse, wrapped, functools.partial(wrapped, "x"), Called(), Called().__call__):
        assert home_of(fn) == __file__
    assert home_of(print) is None
    assert home_of(Odd()) is None


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/srv/app/.venv/lib/python3.12/site-packages/sqlalchemy/engine/base.py", "sqlalchemy"),
        ("/usr/lib/python3/dist-packages/psycopg2/__init__.py", "psycopg2"),
        ("C:\\app\\venv\\Lib\\site-packages\\tenacity.py", "tenacity"),
        (json.__file__, "json"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("/srv/msgworker/crm/jobs.py", None),
        ("/srv/site-packages", None),
        ("jobs.py", None),
    ],
)
def test_libraries_are_told_from_the_users_code(file, library):
    assert library_of(file) == library


def test_a_comprehension_is_named_by_its_function():
    def read() -> list[Any]:
        return [parse_(text) for text in ["{"]]

    def parse_(text: str) -> Any:
        return [json.loads(one) for one in [text]]

    assert place_of(caught(read)) == f"test_traceback.py:{line_of(parse_)} in parse_"


# ---------------------------------------------------------------- text


def test_a_traceback_shows_the_users_frames_and_counts_those_of_libraries():
    def handle() -> None:
        parse("{")

    text = trace_of(caught(handle))
    assert text is not None
    lines = text.split("\n")
    at = lines.index(f'  File "{__file__}", line {line_of(parse)}, in parse')
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[at + 1] == "    return json.loads(text)"
    assert lines[at + 2].startswith("  ... 3 frames of json, up to raw_decode (decoder.py:")
    assert lines[at + 3].startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert lines[at + 4 :] == []


def test_causes_come_before_in_short():
    def low() -> None:
        raise KeyError("k")

    def middle() -> None:
        try:
            low()
        except KeyError as error:
            raise ValueError("v") from error

    def high() -> None:
        try:
            middle()
        except ValueError:
            raise RuntimeError("r")  # noqa: B904

    text = trace_of(caught(high))
    assert text is not None
    order = ["KeyError: 'k'", "direct cause", "ValueError: v", "During handling", "RuntimeError: r"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert text.endswith("RuntimeError: r")


def test_a_cause_that_is_hidden_is_not_shown():
    def hide() -> None:
        try:
            raise KeyError("k")
        except KeyError:
            raise ValueError("v") from None

    text = trace_of(caught(hide))
    assert text is not None
    assert "KeyError" not in text


def test_a_recursion_is_told_in_one_line():
    def again() -> None:
        again()

    text = trace_of(caught(again))
    assert text is not None
    assert "the same" in text
    assert len(text) < 1500


def test_the_errors_of_a_group_are_shown():
    errors = [caught(parse, "{"), *(ValueError(n) for n in range(9))]

    def group() -> None:
        raise ExceptionGroup("many", errors)

    text = trace_of(caught(group))
    assert text is not None
    assert "ExceptionGroup: many (10 sub-exceptions)" in text
    assert "  + 1 of 10\n" in text
    assert "  |     return json.loads(text)" in text
    assert "9 of 10" not in text


def test_groups_inside_groups_end_somewhere():
    group: BaseException = ValueError("bottom")
    for _ in range(100):
        group = ExceptionGroup("g", [group] * 5)  # type: ignore[list-item]

    def fail() -> None:
        raise group

    assert trace_of(caught(fail))


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit("no")

    @property
    def __notes__(self) -> Any:
        raise ValueError


def hostile_errors() -> list[BaseException]:
    circle = ValueError("circle")
    other = KeyError("other")
    circle.__cause__, other.__cause__ = other, circle
    long = ValueError("客\x00\ud800\x1b" * 50_000)
    noted = ValueError("noted")
    noted.__notes__ = ["n" * 100_000] * 50
    chain: BaseException = ValueError("first")
    for n in range(500):
        nxt = ValueError(f"{n}" * 500)
        nxt.__cause__ = chain
        chain = nxt
    return [circle, long, noted, chain, Hostile(), ExceptionGroup("g", [long, long])]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("most", [300, 2000, 8000])
def test_no_error_makes_a_traceback_too_long_or_none(number, most):
    def fail() -> None:
        raise hostile_errors()[number]

    error = caught(fail)
    text = trace_of(error, None, most)
    if number != 4:  # what cannot be told of at all has none
        assert text is not None
        assert "\x00" not in text
        assert len(text.encode("utf-8")) <= most
    trim(error)
    assert where(error) is not None
    assert describe(error)


def deep(n: int) -> None:
    deeper(n)


def deeper(n: int) -> None:
    if n == 0:
        raise ValueError("bottom")
    deep(n - 1)


def test_the_frames_nearest_to_the_error_are_kept():
    text = trace_of(caught(deep, 150))
    assert text is not None
    assert "outer frames are left out" in text
    assert text.endswith('    raise ValueError("bottom")\nValueError: bottom')
    assert len(text) > 6000


def test_an_error_without_code_of_the_users_has_no_traceback():
    assert trace_of(ValueError("never raised")) is None
    assert where(ValueError("never raised")) is None
    assert place_of(ValueError("never raised")) is None


def test_our_own_frames_are_taken_off_the_beginning_of_a_traceback(install):
    def handle() -> None:
        parse("{")

    error = caught(handle)
    first = error.__traceback__
    trim(error)
    assert error.__traceback__ is first  # nothing of ours before it
