"""What reaches a terminal: visible, aligned, in words."""

from __future__ import annotations

import json
import logging
import unicodedata
from datetime import UTC, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from msgworker.cli import logs, output
from msgworker.cli.group import Invocation
from msgworker.cli.logs import Lines
from msgworker.cli.output import Column, age, fitted, print_json, print_table, visible
from msgworker.db.errors import without

COLUMNS = (
    Column("ID", itemgetter(0), "right"),
    Column("TOPIC", itemgetter(1), share=1),
    Column("WHAT", itemgetter(2), share=2, least=12),
)


@pytest.mark.long
@given(st.text())
def test_nothing_a_terminal_acts_on_comes_through(text: str) -> None:
    assert all(unicodedata.category(c) not in output.UNSAFE for c in visible(text))


def test_visible_writes_out_what_it_takes_away() -> None:
    assert visible("a\x1b[31m\x07\n\t\x9b\u202e\u2066\U000e0041b") == (
        r"a\x1b[31m\x07\n\t\x9b\u202e\u2066\U000e0041b"
    )
    assert visible("Ångström 客户") == "Ångström 客户"


@pytest.mark.long
@given(st.recursive(st.text() | st.integers() | st.none(), st.lists))
def test_json_is_read_back_as_it_was(value: object) -> None:
    lines: list[str] = []
    original, output.click.echo = output.click.echo, lambda text: lines.append(text)  # type: ignore[assignment]
    try:
        print_json(value)
    finally:
        output.click.echo = original
    assert all(visible(line) == line for line in lines[0].split("\n"))
    if "\\ud" not in lines[0]:
        assert json.loads(lines[0]) == value


def test_a_whole_row_is_cut_nowhere_however_long_the_name_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "to_terminal", lambda: True)
    monkeypatch.setattr(output, "terminal_width", lambda: 40)
    titles = ("NO", "HOW", "INSTANCE", "ERROR")
    columns = [Column(title, itemgetter(at)) for at, title in enumerate(titles)]
    instance = "vm-1234567-e1fc000a3da3460c"
    print_table(columns, [(1, "failed", instance, "E: no"), (2, "x" * 12, "a", "")], "rest")
    text = capsys.readouterr().out
    assert instance in text
    assert "E: no" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 40


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("text", ["short", "x" * 300, "客户" * 100, "\u202e" * 50])
def test_table_fits_the_terminal(
    width: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "to_terminal", lambda: True)
    monkeypatch.setattr(output, "terminal_width", lambda: width)
    print_table(COLUMNS, [(1, text, text), (22, "t", "")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(wcswidth(line) <= width for line in lines)


def test_table_is_never_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [(1, "t", "x" * 1000)])
    assert "x" * 1000 in capsys.readouterr().out


def test_short_columns_leave_their_room_to_long_ones() -> None:
    assert fitted(COLUMNS, [3, 5, 100], 60) == [3, 5, 52]
    assert fitted(COLUMNS, [3, 100, 100], 63) == [3, 20, 40]
    assert fitted(COLUMNS, [3, 5, 9], 60) == [3, 5, 9]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0.4, "just now"),
        (1, "1 second"),
        (372, "6 minutes"),
        (3600, "1 hour"),
        (86_400 * 3, "3 days"),
        (86_400 * 13, "13 days"),
        (86_400 * 21, "3 weeks"),
    ],
)
def test_ages_in_words(seconds: float | None, words: str) -> None:
    assert age(seconds) == words


def test_short_secrets_are_taken_out_as_words_only() -> None:
    assert without("pw=cat, category (cat)", {"cat"}) == "pw=***, category (***)"
    assert without("xcanaryx", {"canary"}) == "x***x"


def record(message: str, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("msgworker.x", logging.INFO, "f.py", 1, message, (), None)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def with_error(made: logging.LogRecord, text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    return made


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_event_is_one_line(form: str) -> None:
    lines = Lines(form, Invocation(secrets={"canary"}))
    made = with_error(record("a\nb\x1b[0m canary", object_id="C\r\n-1"), "x\ny canary")
    text = lines.format(made)
    assert visible(text) == text
    assert "canary" not in text


def test_a_line_has_the_date_except_on_a_terminal() -> None:
    made = record("x")
    day = f"{datetime.fromtimestamp(made.created, UTC).astimezone():%Y-%m-%d }"
    texts = [Lines("text", Invocation(), dated=dated).format(made) for dated in (True, False)]
    assert texts[0] == day + texts[1]


def test_json_log_has_the_facts() -> None:
    lines = Lines("json", Invocation())
    facts = {"instance": "i", "msg_id": 3, "object_id": "C-1", "topic": "t", "try": 2}
    event = json.loads(lines.format(with_error(record("failed", **facts), "boom")))
    assert {name: event[name] for name in facts} == facts
    assert (event["level"], event["logger"], event["message"]) == ("info", "msgworker.x", "failed")
    assert event["error"] == "ValueError: boom"
    assert "Traceback" in event["traceback"]
    assert datetime.fromisoformat(event["time"]).tzinfo == UTC


class Untold:
    def __str__(self) -> str:
        raise LookupError


AROUND: list[object] = []
AROUND.append(AROUND)
NO_JSON: list[tuple[object, object]] = [
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    (Decimal("NaN"), "NaN"),
    ({(1, 2): 3.5, "x": float("inf")}, {"(1, 2)": 3.5, "x": "inf"}),
    (AROUND, ["..."]),
    (Untold(), "<Untold: LookupError>"),
    (10**5000, "<int: ValueError>"),
]


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(("value", "told"), NO_JSON, ids=range(len(NO_JSON)))
def test_a_line_of_json_is_strict_json_whatever_its_facts_are(
    value: object, told: object, capsys: pytest.CaptureFixture[str]
) -> None:
    made = record("failed", object_id=value, topic="t")
    event = strictly(Lines("json", Invocation()).format(made))
    assert (event["object_id"], event["topic"]) == (told, "t")
    assert "topic=t" in Lines("text", Invocation()).format(made)
    print_json([{"msg_id": 1, "object_id": value}])
    assert strictly(capsys.readouterr().out) == [{"msg_id": 1, "object_id": told}]


def handled(text: str) -> None:
    parsed(text)


def parsed(text: str) -> None:
    json.loads("{")
    raise ValueError(text)


def failure(level: int, text: str = "{") -> logging.LogRecord:
    made = record("message 3 is dead: JSONDecodeError: x", msg_id=3)
    made.levelno, made.levelname = level, logging.getLevelName(level)
    try:
        handled(text)
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    return made


def test_a_dead_message_has_its_traceback_below_its_line_and_a_retry_has_none() -> None:
    lines = Lines("text", Invocation())
    assert "\n" not in lines.format(failure(logging.INFO))
    dead = lines.format(failure(logging.WARNING)).split("\n")
    assert "message 3 is dead" in dead[0]
    assert "error='json.decoder.JSONDecodeError: Expecting" in dead[0]
    assert dead[1] == "    Traceback (most recent call last):"
    assert '        json.loads("{")' in dead
    assert any(line.startswith("      ... 3 frames of json") for line in dead)
    assert "/json/" not in "".join(dead)


def test_with_debug_a_retry_has_its_whole_traceback() -> None:
    lines = Lines("text", Invocation(debug=True))
    for level in (logging.INFO, logging.WARNING):
        text = lines.format(failure(level))
        assert "/json/" in text
        assert "    Traceback (most recent call last):" in text


def test_a_traceback_in_the_log_is_short_masked_and_nothing_in_it_is_raw() -> None:
    made = record("message 3 is dead", msg_id=3)
    made.levelno = logging.WARNING
    made = with_error(made, "a\nb\x1b[0m\u202e canary\n" + "x" * 50_000)
    for debug in (False, True):
        lines = Lines("text", Invocation(secrets={"canary"}, debug=debug))
        found = lines.format(made).split("\n")[1:]
        assert found
        assert all(visible(line) == line for line in found)
        assert "canary" not in "".join(found)
        assert any(r"b\x1b[0m\u202e ***" in line for line in found)
    lines = Lines("text", Invocation(secrets={"canary"}))
    assert len("\n".join(lines.format(made).split("\n")[1:])) < 3000


def test_a_json_line_has_the_traceback_as_a_field() -> None:
    lines = Lines("json", Invocation(secrets={"canary"}))
    for level in (logging.INFO, logging.WARNING):
        text = lines.format(failure(level))
        assert "\n" not in text
        event = json.loads(text)
        assert event["traceback"].startswith("Traceback (most recent call last)")
        assert 'json.loads("{")' in event["traceback"]
        assert event["error"].startswith("json.decoder.JSONDecodeError: ")
    event = json.loads(lines.format(with_error(record("failed"), "x canary")))
    assert "canary" not in event["traceback"]


def test_a_json_line_is_not_as_long_as_the_text_of_an_error() -> None:
    lines = Lines("json", Invocation())
    text = lines.format(with_error(record("failed"), "x" * 1_000_000))
    event = json.loads(text)
    assert len(text) < 40_000
    assert event["traceback"].startswith("Traceback (most recent call last)")
    assert event["error"].startswith("ValueError: xxx")


def test_an_error_that_the_message_tells_is_not_told_twice() -> None:
    lines = Lines("text", Invocation())
    made = with_error(
        record("message 3 failed: ValueError: no file a.txt [x.py:3 in f]"), "no file a.txt"
    )
    assert "error=" not in lines.format(made)
    assert "error=" in lines.format(with_error(record("see a.txt"), "no file a.txt"))


def test_an_idle_service_logs_no_progress(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    caplog.set_level("INFO", "msgworker.cli")
    progress = logs.StatusLine(quiet=False)
    log = []
    for done in (0, 0, 0, 40, 40, 40, 41, 41):
        caplog.clear()
        progress.show({"done": done, "dead": 0})
        log.append([record.getMessage() for record in caplog.records])
        now[0] += logs.LOG_PROGRESS_SECONDS
    told = ["progress: 30 s  done 40  dead 0  4/s"], ["progress: 60 s  done 41  dead 0  0/s"]
    assert log == [[], [], [], told[0], [], [], told[1], []]
