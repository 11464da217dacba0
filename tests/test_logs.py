"""What others wrote is one line of the log, in a program that has set up plain logging."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Message
from msgworker.instance.role import Away, Role
from msgworker.logs import logger, traceback_text
from tests.support.apps import created
from tests.support.rows import send

FORGED = "a\r\nCRITICAL forged\x1b[2K\x85\u2028\u202e"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What `logging.basicConfig` would print, with the attributes of the records."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        logging.Formatter(
            "%(levelname)s %(message)s %(topic)s %(object_id)s",
            defaults={"topic": "", "object_id": ""},
        )
    )
    own = logging.getLogger("msgworker")
    before = own.level
    own.addHandler(handler)
    own.setLevel(logging.DEBUG)
    yield stream
    own.removeHandler(handler)
    own.setLevel(before)


def assert_unforged(log: io.StringIO, *, times: int = 1) -> None:
    text = log.getvalue()
    assert text.count("forged") >= times
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines), text
    assert not [line for line in lines if line.startswith("CRITICAL")], text


def test_a_failed_try_is_told_without_line_ends_of_others(sqlite: Any, log: io.StringIO):
    app = created(App(sqlite.url, backoff_seconds=0))

    @app.handler("t")
    def handle(msg: Message) -> None:
        try:
            raise KeyError(FORGED)
        except KeyError as error:
            told = ValueError(FORGED)
            told.add_note(FORGED)
            raise told from error

    send(app, FORGED)
    app.drain(linger=0)
    assert_unforged(log, times=5)
    assert "Traceback (most recent call last):\n  File " in log.getvalue()


def test_the_log_of_the_library_shows_no_password_of_a_url(sqlite: Any, log: io.StringIO):
    app = created(App(sqlite.url, backoff_seconds=0))

    @app.handler("t")
    def fail(msg: Message) -> None:
        raise OSError("https://bob:hunter2@crm/x?api_key=hunter2 refused")

    send(app, "x")
    app.drain(linger=0)
    assert "https://bob:***@crm/x?api_key=*** refused" in log.getvalue()
    logger("msgworker.app").info("the locks are at %s", "redis://ann:hunter2@cache/0")
    assert "the locks are at redis://ann:***@cache/0" in log.getvalue()
    assert "Traceback" in log.getvalue()
    shown = [line for line in log.getvalue().split("\n") if 'raise OSError("' not in line]
    assert "hunter2" not in "\n".join(shown)


def test_a_topic_without_a_handler_is_told_on_one_line(sqlite: Any, log: io.StringIO):
    app = created(App(sqlite.url))
    app.handler("t")(lambda msg: None)
    send(app, "x", topic=FORGED)
    app.drain(linger=0)
    assert_unforged(log)


def test_what_the_database_says_of_a_row_is_told_on_one_line(sqlite: Any, log: io.StringIO):
    app = created(App(sqlite.url))
    app.handler("t")(lambda msg: None)
    send(app, FORGED, FORGED)
    with app.engine.begin() as conn:
        conn.execute(
            sa.text(
                "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message WHEN NEW.status = 1 "
                "BEGIN SELECT RAISE(ABORT, 'a\r\nCRITICAL forged'); END"
            )
        )
    app.drain(linger=0, time_limit=1)
    assert_unforged(log)


def test_the_log_of_a_handler_has_the_facts_escaped_and_its_text_as_it_is(
    sqlite: Any, log: io.StringIO
):
    app = created(App(sqlite.url))

    @app.handler("t")
    def handle(msg: Message, ctx: Any) -> None:
        ctx.log.info("two\nlines")

    send(app, FORGED)
    app.drain(linger=0)
    assert "two\nlines t a\\r\\nCRITICAL forged" in log.getvalue()


def test_a_traceback_keeps_its_form():
    try:
        raise ExceptionGroup("several", [ValueError("x\ny"), SyntaxError("a\nb")])
    except ExceptionGroup as error:
        text = traceback_text(error)
    assert text.startswith("  + Exception Group Traceback (most recent call last):\n")
    assert "ValueError: x\\ny" in text
    assert "SyntaxError: a\\nb" in text


def test_a_record_without_odd_texts_is_left_as_it_is(caplog: pytest.LogCaptureFixture):
    logger("msgworker.app").warning("Zürich %s and %d", "東京", 7)
    (record,) = caplog.records
    assert (record.msg, record.args) == ("Zürich %s and %d", ("東京", 7))


@pytest.mark.parametrize("status", [1, 2])
def test_a_row_that_a_check_refuses_is_not_shown(postgresql: Any, log: io.StringIO, status: int):
    app = created(App(postgresql.url, backoff_seconds=0))
    app.handler("t")(lambda msg: None)
    send(app, "bad", payload="secret-4711")
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"ALTER TABLE msgworker_message ADD CONSTRAINT no CHECK (object_id <> 'bad' OR "
            f"status <> {status})"
        )
    app.drain(linger=0, time_limit=2)

    class Beat(Role):
        def run_once(self) -> int:
            with app.engine.begin() as conn:
                conn.exec_driver_sql(f"UPDATE msgworker_message SET status = {status}")
            return 0

    Beat("beat", logging.LoggerAdapter(logger("msgworker.instance"), {}), Away()).round_once()
    told = log.getvalue()
    assert "violates check constraint" in told
    assert "secret-4711" not in told
