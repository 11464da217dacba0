"""What the errors of drivers mean."""

from __future__ import annotations

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import StatementError

from msgworker.db import Trouble, is_of_the_session, no_connection_left, trouble


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
        (psycopg.errors.DivisionByZero("division by zero"), Trouble.OTHER),
        (pymysql.err.OperationalError(1021, "Disk full"), Trouble.LOST),
        (pymysql.err.OperationalError(1114, "The table is full"), Trouble.LOST),
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
