"""A connection and a cursor as those of Oracle's driver, over a session of MariaDB."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import oracledb

from proof.oracle import text
from proof.oracle.dictionary import is_asked
from proof.oracle.errors import dpy, is_lost, ora
from proof.oracle.faults import faults
from proof.oracle.mariadb import Answer, MariaDBSession
from proof.oracle.values import LOBS, Lob, Variable, plain_number, read, sent
from tests.oracle_lint import lint, parts_of_block

Handler = Callable[..., Variable | None]

_NOT_RUN = {r"\bv\$\w+": lambda: ora(942, "table or view does not exist")}
"""What a login without further rights is refused."""
_TRANSACTION = re.compile(r"^\s*begin\b.*dbms_transaction", re.I | re.S)
_STATISTICS = re.compile(r"BEGIN DBMS_STATS\.")  # PL/SQL, which ends with a semicolon
_LONG = re.compile(r"^longer than ")  # names of 128 bytes are good since 12.2


class Work:
    """What a session has cost, as the thin driver would count it: statements, round trips, and
    parses, which are statements that its cache did not hold any more."""

    def __init__(self) -> None:
        self.statements = 0
        self.round_trips = 0
        self.parses = 0

    def __iadd__(self, other: Work) -> Work:
        self.statements += other.statements
        self.round_trips += other.round_trips
        self.parses += other.parses
        return self


class Cursor:
    """One statement at a time. Its rows are all read at once; how many the driver would have by
    then, and with how many round trips, is counted."""

    arraysize = 100
    prefetchrows = 2

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.outputtypehandler: Handler | None = None
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self._rows: list[tuple[Any, ...]] = []
        self._counts: list[int] = []
        self._open = True
        self._here = 0
        self._more = False

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._open = False

    def setinputsizes(self, *args: Any, **named: Any) -> None: ...

    def var(self, typ: Any, *args: Any, **options: Any) -> Variable:
        return Variable(typ, *args, **options)

    def execute(self, sql: str, parameters: Any = None, **named: Any) -> Cursor:
        given = named if parameters is None else parameters
        values = self.connection.named(sql, given)
        if _TRANSACTION.match(sql):  # every login may ask for it
            values["TRANS_ID"].values = ["1.2.3"]
            return self
        answer = self.connection.run(sql, [values])[0]
        if parts_of_block(sql):
            self.rowcount, self.description = 0, None
            for counts in answer.rows[:1]:  # none where the block counts nothing
                for (name, *_), count in zip(answer.columns, counts, strict=True):
                    values[name].values = [values[name].converted(count)]
            return self
        outs = text.returning(sql)[2]
        if outs:
            self._give(outs, values, [answer])
            self.rowcount, self.description = len(answer.rows), None
        elif answer.columns:
            self.description, self._rows = self._described(answer)
            self.rowcount = 0
            self._prefetch(sql, answer)
        else:
            self.description, self.rowcount = None, answer.changed
        return self

    def executemany(
        self,
        sql: str,
        parameters: Any,
        *,
        batcherrors: bool = False,
        arraydmlrowcounts: bool = False,
    ) -> None:
        if batcherrors:
            raise dpy(3000, "batch errors are not simulated")
        sets = [self.connection.named(sql, one) for one in parameters]
        answers = self.connection.run(sql, sets)
        outs = text.returning(sql)[2]
        if outs and sets:
            self._give(outs, sets[0], answers)
        self._counts = [len(a.rows) if outs else a.changed for a in answers]
        self.rowcount, self.description = sum(self._counts), None

    def getarraydmlrowcounts(self) -> list[int]:
        return self._counts

    def _give(self, outs: list[str], values: dict[str, Any], answers: list[Answer]) -> None:
        for column, out in enumerate(outs):
            variable = values[out]
            variable.values = [
                [variable.converted(read(row[column])) for row in answer.rows] for answer in answers
            ]

    def _prefetch(self, sql: str, answer: Answer) -> None:
        """The answer brings the first rows with it. Not where a column is a LOB, whose type the
        driver first asks for, once for each statement that it keeps."""
        if any(kind in LOBS for _, kind, _, _ in answer.columns):
            self.connection.work.round_trips += self.connection.is_new
            self._here, self._more = 0, True
            return
        self._here = min(self.prefetchrows, len(self._rows))
        self._more = len(self._rows) >= self.prefetchrows

    def _fetch(self, count: float) -> None:
        """Round trips until so many rows are here, or all of them."""
        while self._more and self._here < count:
            self.connection.work.round_trips += 1
            got = min(self.arraysize, len(self._rows) - self._here)
            self._here += got
            self._more = got == self.arraysize

    def _described(self, answer: Answer) -> tuple[list[Any], list[tuple[Any, ...]]]:
        handler = self.outputtypehandler or self.connection.outputtypehandler
        description, ways = [], []
        for name, kind, precision, scale in answer.columns:
            variable = handler(self, name, kind, 0, precision, scale) if handler else None
            ways.append(self._way(variable, kind))
            description.append((name, kind, None, None, precision, scale, True))
        rows = [
            tuple([way(read(value)) for way, value in zip(ways, row, strict=True)])
            for row in answer.rows
        ]
        return description, rows

    @staticmethod
    def _way(variable: Variable | None, kind: Any) -> Callable[[Any], Any]:
        if variable is not None:
            return variable.converted
        if kind is oracledb.DB_TYPE_CLOB:
            return lambda value: None if value is None else Lob(value)
        return plain_number

    def fetchone(self) -> tuple[Any, ...] | None:
        self._check()
        self._fetch(1)
        return self._taken(1)[0] if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        self._check()
        count = self.arraysize if size is None else size
        self._fetch(count)
        return self._taken(count)

    def fetchall(self) -> list[tuple[Any, ...]]:
        self._check()
        self._fetch(inf)
        return self._taken(len(self._rows))

    def _taken(self, count: int) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows[:count], self._rows[count:]
        self._here -= len(rows)
        return rows

    def _check(self) -> None:
        if not self._open:
            raise dpy(1006, "cursor is not open")
        if self.description is None:
            raise dpy(1003, "the executed statement does not return rows")


class Connection:
    """A session of a server of version 19, as the thin driver shows it."""

    version = "19.0.0.0.0"
    max_identifier_length = 128
    thin = True

    def __init__(
        self, session: MariaDBSession, *, stmtcachesize: int = 20, strict: bool = True
    ) -> None:
        """strict: refuse what Oracle would; else MariaDB's own words are good, too."""
        self.stmtcachesize = stmtcachesize
        self._strict = strict
        self.outputtypehandler: Handler | None = None
        self.call_timeout = 0
        self._session = session
        self._autocommit = False
        self._dead = False
        self.work = Work()
        self.is_new = False  # whether the last statement was not in the cache
        self._kept: OrderedDict[str, None] = OrderedDict()
        sessions.append(self.work)

    @property
    def autocommit(self) -> bool:
        return self._autocommit

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        # A flag of the driver: the server is told with the next statement.
        if on != self._autocommit and not self._dead:
            self._session.set_autocommit(on)
        self._autocommit = on

    def cursor(self, scrollable: bool = False) -> Cursor:
        if self._dead:
            raise dpy(1001, "not connected to database")
        return Cursor(self)

    @staticmethod
    def named(sql: str, given: Any) -> dict[str, Any]:
        """The parameters by name, exactly those of the statement, as the driver wants them."""
        named = {str(name).strip('"').upper(): value for name, value in dict(given or {}).items()}
        wanted = set(text.bind_names(sql))
        if set(named) - wanted:
            raise dpy(4008, f"no bind placeholder named {sorted(set(named) - wanted)}")
        if wanted - set(named):
            raise dpy(4010, f"a bind variable for {sorted(wanted - set(named))} was not given")
        return named

    def run(self, sql: str, sets: list[dict[str, Any]]) -> list[Answer]:
        """Send a statement once, with one or several sets of values: one round trip."""
        if self._dead:
            raise dpy(1001, "not connected to database")
        for pattern, error in _NOT_RUN.items():
            if re.search(pattern, sql, re.I | re.S):
                raise error()
        if self._strict and not (is_asked(sql) or _STATISTICS.match(sql)):
            wrong = [what for what in lint(sql) if not _LONG.match(what)]
            if wrong:
                raise ora(900, f"{wrong[0]}: {sql}")
        self._note(sql)
        with self._failing():
            faults.at_statement(sql)
            answers = [
                self._session.execute(sql, {k: sent(v) for k, v in one.items()}, self.call_timeout)
                for one in sets
            ]
            faults.after_statement(sql)
            return answers

    def _note(self, sql: str) -> None:
        self.work.statements += 1
        self.work.round_trips += 1
        self.is_new = sql not in self._kept
        self.work.parses += self.is_new
        self._kept[sql] = None
        self._kept.move_to_end(sql)
        if len(self._kept) > self.stmtcachesize:
            self._kept.popitem(last=False)

    def _failing(self) -> _Failing:
        return _Failing(self)

    def lose(self) -> None:
        self._dead = True
        with suppress(Exception):
            self._session.close()

    def commit(self) -> None:
        if self._dead:
            raise dpy(1001, "not connected to database")
        self.work.round_trips += 1
        with self._failing():
            faults.before_commit()
            self._session.commit()
            faults.after_commit()

    def rollback(self) -> None:
        if self._dead:
            raise dpy(1001, "not connected to database")
        self.work.round_trips += 1
        with self._failing():
            self._session.rollback()

    def ping(self) -> None:
        if self._dead:
            raise dpy(1001, "not connected to database")
        with self._failing():
            self._session.ping()

    def cancel(self) -> None:
        self._session.cancel()

    def close(self) -> None:
        """Without an error where the session is lost already."""
        self.lose()


sessions: list[Work] = []  # of all sessions of this process, also those that have ended


class _Failing:
    """A block whose errors of a lost session leave the connection dead."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, oracledb.Error) and is_lost(error):
            self._connection.lose()
