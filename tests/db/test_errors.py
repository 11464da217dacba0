"""What the errors of drivers mean and show; a commit whose answer is lost."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import StatementError

from msgworker.db import errors
from msgworker.db.database import Trouble
from msgworker.db.errors import (
    Failures,
    Fate,
    is_of_the_session,
    no_connection_left,
    nothing,
    repeatable,
    trouble,
    until_known,
    without,
)

# --- What is sent, looked for and waited for until it is known what became of a commit.


class Rolled(Exception):
    """Rolled back: a deadlock."""


class Lost(Exception):
    """The connection was lost."""


class Bad(Exception):
    """No use to go on."""


def judge(error: BaseException, looking: bool) -> Fate:
    fates = {Rolled: Fate.AGAIN, Lost: Fate.UNKNOWN, Bad: Fate.RAISE}
    return fates[type(error)]


class Script:
    """Answers of the database in order; `told` is what was asked of it."""

    def __init__(self, *answers: Any, patience: int = 99) -> None:
        self.answers = list(answers)
        self.patience = patience
        self.told: list[str] = []

    def _next(self, what: str) -> Any:
        self.told.append(what)
        answer = self.answers.pop(0)
        if isinstance(answer, type):
            raise answer
        return answer

    def may_continue(self) -> bool:
        self.patience -= 1
        return self.patience >= 0

    def failed(self, error: BaseException) -> float:
        self.told.append(type(error).__name__)
        return 1.5

    def over(self) -> None:
        self.told.append("over")

    def run(self, **how: Any) -> Any:
        return until_known(
            lambda: self._next("send"),
            lambda: self._next("look"),
            self.may_continue,
            self,
            **({"judge": judge} | how),
        )


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it has waited."""
    times: list[float] = []
    monkeypatch.setattr(errors.time, "sleep", times.append)
    return times


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["a"], "send over"),
        ([Rolled, "a"], "send Rolled send over"),
        ([Rolled, Rolled, "a"], "send Rolled send Rolled send over"),
        ([Lost, "a"], "send Lost look over"),
        ([Lost, None, "a"], "send Lost look send over"),
        ([Lost, Lost, "a"], "send Lost look Lost look over"),
        # A look that was rolled back ends no doubt.
        ([Lost, Rolled, "a"], "send Lost look Rolled look over"),
        ([Lost, None, Rolled, "a"], "send Lost look send Rolled send over"),
        ([Lost, None, Lost, None, "a"], "send Lost look send Lost look send over"),
    ],
)
def test_nothing_is_sent_again_before_it_is_known_that_it_was_not_committed(
    answers: list[Any], told: str, slept: list[float]
) -> None:
    script = Script(*answers)
    assert script.run() == "a"
    assert " ".join(script.told) == told
    assert slept == [1.5] * sum(isinstance(one, type) for one in answers)


@pytest.mark.parametrize("before", [[], [Rolled], [Lost], [Lost, None]])
def test_what_is_of_no_use_is_raised_at_once(before: list[Any], slept: list[float]) -> None:
    with pytest.raises(Bad):
        Script(*before, Bad).run()
    assert len(slept) == len([one for one in before if one is not None])


@pytest.mark.parametrize("error", [Rolled, Lost])
def test_who_may_not_go_on_does_not_wait(error: type[Exception], slept: list[float]) -> None:
    script = Script(error, patience=0)
    assert script.run() is None
    assert script.told == ["send", error.__name__]
    assert slept == []


def test_before_it_is_sent_again_the_caller_may_end_it() -> None:
    ends: list[str | None] = [None, "ended"]
    script = Script(Lost, None, Rolled)
    assert script.run(before_again=lambda: ends.pop(0)) == "ended"
    assert script.told == ["send", "Lost", "look", "send", "Rolled"]


def test_what_the_caller_raises_then_is_not_judged() -> None:
    def gone() -> None:
        raise Lost

    script = Script(Rolled)
    with pytest.raises(Lost):
        script.run(before_again=gone)
    assert script.told == ["send", "Rolled"]


def database_error(**how: Any) -> sa.exc.DBAPIError:
    return sa.exc.DBAPIError("", {}, Exception("x"), **how)


@pytest.mark.parametrize(
    ("error", "usual", "of_reads"),
    [
        (lambda: database_error(connection_invalidated=True), Fate.UNKNOWN, Fate.AGAIN),
        (lambda: ValueError("x"), Fate.RAISE, Fate.RAISE),
    ],
)
def test_a_lost_connection_leaves_a_doubt_but_not_of_a_read(
    error: Callable[[], Exception], usual: Fate, of_reads: Fate
) -> None:
    assert errors.by_trouble(error(), False) is usual
    assert repeatable(error(), False) is of_reads


def test_a_read_is_sent_again_without_a_look(slept: list[float]) -> None:
    answers: list[Any] = [database_error(connection_invalidated=True), 7]
    failures = Failures()

    def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert failures.count == 1
        return int(answer)

    assert until_known(read, nothing, lambda: True, failures, judge=repeatable) == 7
    assert failures.count == 0
    assert len(slept) == 1
    assert 0.05 <= slept[0] <= 0.55


# --- What the errors of drivers mean.


class ServerSaid(Exception):
    """An error with what other drivers give it: psycopg2 a `pgcode`, MariaDB Connector/Python an
    `errno` and a `sqlstate`."""

    def __init__(self, text: str, **known: object) -> None:
        super().__init__(text)
        vars(self).update(known)


class Psycopg2Said(ServerSaid):
    """The same of psycopg2."""


ServerSaid.__module__ = "mariadb"  # whose errors are known by the driver that raises them
Psycopg2Said.__module__ = "psycopg2"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.ConnectionTimeout("connection timeout expired"), Trouble.LOST),
        (psycopg.OperationalError("connection failed: timeout expired"), Trouble.LOST),
        (psycopg.OperationalError("consuming input failed: SSL SYSCALL error"), Trouble.LOST),
        (psycopg.errors.DiskFull("could not extend file"), Trouble.LOST),
        (psycopg.errors.OutOfMemory("out of memory"), Trouble.LOST),
        (psycopg.errors.TooManyConnections("Too many clients"), Trouble.LOST),
        (psycopg.OperationalError("connection failed: FATAL:  Too many clients"), Trouble.LOST),
        (psycopg.errors.DatabaseDropped("was dropped"), Trouble.LOST),
        (psycopg.errors.SnapshotTooOld("snapshot too old"), Trouble.AGAIN),
        (sqlite3.OperationalError("locking protocol"), Trouble.AGAIN),
        (psycopg.errors.DivisionByZero("division by zero"), Trouble.OTHER),
        (pymysql.err.OperationalError(1021, "Disk full"), Trouble.LOST),
        (pymysql.err.OperationalError(1114, "The table is full"), Trouble.LOST),
        (pymysql.err.InternalError(1030, "Got error 28 from storage engine"), Trouble.LOST),
        (pymysql.err.InternalError(1026, 'Error writing "/tmp/x" (errno: 28 "No")'), Trouble.LOST),
        (pymysql.err.InternalError(3, "Error writing file 'x' (OS errno 28 - No)"), Trouble.LOST),
        (pymysql.err.InternalError(1030, "Got error 127 from storage engine"), Trouble.OTHER),
        (pymysql.err.OperationalError(1206, "The total number of locks exceeds"), Trouble.LOST),
        (pymysql.err.OperationalError(1637, "concurrent transactions"), Trouble.LOST),
        (pymysql.err.OperationalError(1158, "reading communication packets"), Trouble.LOST),
        (pymysql.err.OperationalError(3572, "NOWAIT is set"), Trouble.AGAIN),
        (pymysql.err.InternalError(1874, "InnoDB is in read only mode"), Trouble.REFUSED),
        (pymysql.err.OperationalError(4151, "this account is locked"), Trouble.REFUSED),
        (pymysql.err.OperationalError(1040, "Too many connections"), Trouble.LOST),
        (pymysql.err.OperationalError(1213, "Deadlock: wsrep aborted transaction"), Trouble.AGAIN),
        (pymysql.err.OperationalError(1317, "Query execution was interrupted"), Trouble.AGAIN),
        (pymysql.err.OperationalError(1047, "WSREP has not yet prepared node"), Trouble.LOST),
        (pymysql.err.OperationalError(1180, 'Got error 6 "No such device"'), Trouble.LOST),
        (pymysql.err.OperationalError(1180, 'Got error 90 "Message too long"'), Trouble.OTHER),
        (pymysql.err.OperationalError(1290, "running with the --read-only option"), Trouble.LOST),
        (pymysql.err.OperationalError(1290, "with the --super_read_only option"), Trouble.LOST),
        (pymysql.err.OperationalError(1290, "with the --secure-file-priv"), Trouble.REFUSED),
        (pymysql.err.OperationalError(3101, "Plugin instructed the server"), Trouble.AGAIN),
        (pymysql.err.OperationalError(3032, "The server is in offline mode"), Trouble.LOST),
        (pymysql.err.OperationalError(3797, "Error while waiting for group"), Trouble.LOST),
        (pymysql.err.OperationalError(4031, "disconnected because of inactivity"), Trouble.LOST),
        (pymysql.err.OperationalError(3118, "Account is locked"), Trouble.REFUSED),
        (pymysql.err.OperationalError(1862, "Your password has expired"), Trouble.REFUSED),
        (pymysql.err.DataError(1406, "Data too long"), Trouble.OTHER),
        (Psycopg2Said("deadlock detected", pgcode="40P01"), Trouble.AGAIN),
        (Psycopg2Said("Too many clients", pgcode="53300"), Trouble.LOST),
        (Psycopg2Said("division by zero", pgcode="22012"), Trouble.OTHER),
        (ServerSaid("Deadlock found", errno=1213, sqlstate="40001"), Trouble.AGAIN),
        (ServerSaid("Too many connections", errno=1040, sqlstate="08004"), Trouble.LOST),
        (ServerSaid("Malformed packet", errno=2027, sqlstate="HY000"), Trouble.LOST),
        (ServerSaid("Data too long", errno=1406, sqlstate="22001"), Trouble.OTHER),
        (ServerSaid("Invalid connection or not connected"), Trouble.LOST),
        (Psycopg2Said("could not receive data from server: Connection reset"), Trouble.LOST),
        (Psycopg2Said("connection already closed"), Trouble.LOST),
    ],
    ids=str,
)
def test_what_drivers_say(error: Exception, kind: Trouble) -> None:
    assert trouble(error) is kind
    assert no_connection_left(error) is ("Too many" in str(error))


@pytest.mark.parametrize("error", [MemoryError(), SystemError("of the interpreter")])
def test_want_of_memory_leaves_a_doubt_and_is_no_fault_of_a_statement(error: Exception) -> None:
    for one in (error, StatementError("wrapped", "SELECT", {}, error)):
        assert trouble(one) is Trouble.LOST
        assert is_of_the_session(one)


# --- Texts without what looks like a secret in a URL.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("get http://bob:hunter2@crm/x failed", "get http://bob:***@crm/x failed"),
        ("amqp://:hunter2@mq", "amqp://:***@mq"),
        ("redis://:p/w#?2@cache:6379/0", "redis://:***@cache:6379/0"),
        ("postgresql+psycopg://u:p@ss@host/db", "postgresql+psycopg://u:***@host/db"),
        ("'http://a:b@c', 'http://d:e@f'", "'http://a:***@c', 'http://d:***@f'"),
        ("https://ghp_0123456789abcdef@git/x", "https://***@git/x"),
        ("url: /v1?id=3&api_key=hunter2&n=1 (refused)", "url: /v1?id=3&api_key=***&n=1 (refused)"),
        ("https://s3/x?X-Amz-Signature=hunter2", "https://s3/x?X-Amz-Signature=***"),
        ("/x?access_token=hunter2#top", "/x?access_token=***#top"),
    ],
)
def test_what_looks_like_a_secret_in_a_url_is_not_shown(text: str, shown: str) -> None:
    assert without(text, ()) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://crm:8080/users/bob@example.com is gone",
        "http://crm:8080",
        "ssh://git@host/x",
        "http://[::1]:80/a@b",
        "mail bob@example.com: refused",
        "key 'a' = 1; topic=token, n=2",
        "/x?page=2&topic=settle",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without(text, ()) == text


@pytest.mark.parametrize(
    "part", ["http://a:", "://", "?a", "&token", "http://b", "x://" + "a" * 99]
)
def test_a_long_text_takes_no_long_time(part: str) -> None:
    text = (part * 50_000)[:50_000]
    begun = time.process_time()
    without(text, ())
    assert time.process_time() - begun < 1
