"""Odd rows among good ones, drained: whatever stands in a row harms that row only."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import strategies as st
from tenacity.wait import wait_none

from msgworker import App, Message, MessageTable, Reject, RetryLater
from msgworker.cli import main
from msgworker.errors import ExitCode
from msgworker.queries.explain import Explanation, Reason
from proof.fuzz.values import COLUMNS, MAX_PAYLOAD, values
from tests.engines import plain_engine

GOOD, OBJECTS = 300, 30
TABLE = "msgworker_message"
BESIDE = ("lease", "item", "try", "audit", "operation", "pause")
SECONDS = 120.0  # a drain that takes so long is stuck
PASSED_OVER = (Reason.UNKNOWN_STATUS, Reason.RUNNING_FOREIGN, Reason.NOT_DUE)
HERE = "msgworker_fuzz"  # the module by which the command line finds the App
EFFECTS = sa.Table(
    "fuzz_effect",
    sa.MetaData(),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("msg_id", sa.BigInteger),
)
"""What the transactional handler writes: that runs again where its transaction was rolled back."""
FINDS = {"doctor": ExitCode.SCHEMA, "list": ExitCode.NOTHING_MATCHED}
"""What a command may end with besides 0: doctor tells rows of unknown status."""
SHOWN = 4  # so many odd rows are shown and explained by the command line, too


@dataclass(frozen=True)
class Odd:
    """A row of another program: SQL by column. before: the good row that comes next.
    shares: the number of the object of good ones that it is of; None: its own."""

    columns: Mapping[str, str]
    topic: str = "t"
    before: int = GOOD
    shares: int | None = None


STARTS = ({}, {"status": "-1"}, {"status": "1", "claimed_by": "'gone-1'"}, {"status": "1"})
"""What a row is before its odd values are put into it; most are new."""


def odd_rows(database: str, many: int) -> st.SearchStrategy[list[Odd]]:
    """So many rows with one to three odd values each; one in eight shares an object."""
    names = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3, unique=True)
    odd = names.flatmap(
        lambda some: st.fixed_dictionaries({name: values(database, name) for name in some})
    )
    columns = st.builds(_over, st.sampled_from((STARTS[0],) * 7 + STARTS), odd)
    shares = st.integers(0, 8 * OBJECTS - 1).map(lambda n: n if n < OBJECTS else None)
    topics = st.sampled_from(["t", "t", "tx", "fails", "later", "rejects"])
    one = st.builds(Odd, columns, topics, st.integers(0, GOOD), shares)
    return st.lists(one, min_size=many, max_size=many)


def _over(start: Mapping[str, str], odd: Mapping[str, str]) -> dict[str, str]:
    return {**start, **odd}


class Harm(AssertionError):
    """What must not be; the text names the rows."""


@dataclass
class Trial:
    """One table with good and odd rows on it."""

    url: str
    database: str
    rule: str
    figures: Counter[str] = field(default_factory=Counter)
    harms: list[str] = field(default_factory=list)
    good: dict[int, str] = field(default_factory=dict)
    odd: dict[int, Odd] = field(default_factory=dict)
    ran: list[int] = field(default_factory=list)

    def run(self, odds: Sequence[Odd]) -> Counter[str]:
        """Raises Harm."""
        app = self._fresh()
        try:
            self._put(odds)
            before = self._states()
            self._look(app, "before")
            report = self._drain(app)
            after = self._states()
            self._judge_good(after)
            self._judge_odd(app, before, after)
            unfinished = sum(state.open for state in after.values())
            if report is not None and report.left != unfinished:
                self.harms.append(f"{unfinished} rows are unfinished, but {report}")
            self._look(app, "after")
            self._without_odd_ones(app, after)
        finally:
            app.engine.dispose()
        if self.harms:
            raise Harm("\n".join(self.harms))
        return self.figures

    # ------------------------------------------------------------ what stands in the table

    def _fresh(self) -> App:
        engine = plain_engine(self.url)
        with engine.begin() as conn:
            for name in (TABLE, EFFECTS.name, *(f"msgworker_{one}" for one in BESIDE)):
                conn.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
            EFFECTS.create(conn)
        engine.dispose()
        table = MessageTable(max_payload=MAX_PAYLOAD, on_dead=self.rule)
        app = App(self.url, table=table, lease_seconds=3)
        app.create_schema()
        listen(app, self.ran)
        return app

    def _put(self, odds: Sequence[Odd]) -> None:
        engine = plain_engine(self.url)
        raw = engine.raw_connection()
        cursor = raw.cursor()
        if self.database == "mariadb":
            cursor.execute("SET SESSION sql_mode = ''")
        late = [odd for odd in odds if "msg_id" in odd.columns]  # none gets an id behind the last
        soon = sorted((odd for odd in odds if "msg_id" not in odd.columns), key=_place)
        for i in range(GOOD + 1):
            while soon and soon[0].before <= i:
                self._put_odd(cursor, soon.pop(0))
            if i < GOOD:
                object_id, topic = f"o{i % OBJECTS}", "tx" if i % 3 == 0 else "t"
                text = f"('{topic}', '{object_id}', '{{\"n\": {i}}}')"
                cursor.execute(_insert("(topic, object_id, payload)", text))
                self.good[cursor.fetchone()[0]] = object_id
        for odd in late:
            self._put_odd(cursor, odd)
        raw.commit()
        raw.close()
        engine.dispose()

    def _put_odd(self, cursor: Any, odd: Odd) -> None:
        own = f"own{len(self.odd)}" if odd.shares is None else f"o{odd.shares}"
        columns = {"topic": f"'{odd.topic}'", "object_id": f"'{own}'"} | {**odd.columns}
        cursor.execute("SAVEPOINT odd")
        try:
            cursor.execute(_insert(f"({', '.join(columns)})", f"({', '.join(columns.values())})"))
            (msg_id,) = cursor.fetchone()
        except Exception:
            self.figures["refused by the database"] += 1
            cursor.execute("ROLLBACK TO SAVEPOINT odd")
        else:
            self.figures["rows"] += 1
            self.odd[msg_id] = odd
        cursor.execute("RELEASE SAVEPOINT odd")

    def _states(self) -> dict[int, State]:
        last = 3 + (self.rule == "block")
        known = "CASE WHEN status IN (-1, 0, 1, 2) THEN CAST(status AS DECIMAL) END"
        tries = f"coalesce(error_try_times, 0) < {last}"
        is_open = f"CASE WHEN status IN (0, 1) OR (status = -1 AND {tries}) THEN 1 ELSE 0 END"
        objects = ", ".join(f"'o{i}'" for i in range(OBJECTS))
        engine = plain_engine(self.url)
        with engine.connect() as conn:
            shared = dict(
                conn.exec_driver_sql(
                    f"SELECT msg_id, object_id FROM {TABLE} WHERE object_id IN ({objects})"
                ).all()
            )
            found = conn.exec_driver_sql(f"SELECT msg_id, {known}, {is_open} FROM {TABLE}").all()
        engine.dispose()
        return {
            i: State(None if s is None else int(s), bool(o), shared.get(i)) for i, s, o in found
        }

    # ------------------------------------------------------------ work

    def _drain(self, app: App) -> Any:
        told, engine = _Told(), plain_engine(self.url)
        with told.listening():
            try:
                report = app.drain(threads=3, linger=0.3, time_limit=SECONDS)
            except Exception as error:
                self.harms.append(f"the drain ended with {type(error).__name__}: {error!s:.500}")
                return None
        if report.stopped or report.exit_code not in (0, 1, 6):
            self.harms.append(f"the drain did not come to its end: {report}")
        self.harms += told.faults
        with engine.begin() as conn:
            self.ran += conn.scalars(sa.select(EFFECTS.c.msg_id).order_by(EFFECTS.c.number)).all()
            conn.execute(EFFECTS.delete())
        engine.dispose()
        return report

    def _look(self, app: App, when: str) -> None:
        calls = [["doctor"], ["status"], ["list", "--limit", "1000"], ["failures"], ["lanes"]]
        if when == "after":
            calls += [["list", "--json"], ["instances"]]
            calls += [["list", "--status", word] for word in ("new", "dead")]
        for i in list(self.odd)[:: max(1, len(self.odd) // SHOWN)]:
            calls += [["show", "--", str(i)], ["explain", "--", str(i)]]
        here = ModuleType(HERE)
        here.app = app  # type: ignore[attr-defined]
        sys.modules[HERE] = here
        for call in calls:
            done = CliRunner().invoke(main, [call[0], "--app", f"{HERE}:app", *call[1:]])
            if done.exit_code not in (0, FINDS.get(call[0])):
                said = f"{done.stdout[-300:]} {done.stderr[-300:]}"
                self.harms.append(f"{when}: {' '.join(call)} ends with {done.exit_code}: {said}")
        del sys.modules[HERE]
        try:
            app.ops.find(limit=10_000)
            for i in self.odd:
                app.ops.show(i)
        except Exception as error:
            self.harms.append(f"{when}: {type(error).__name__}: {error!s:.500}")

    def _without_odd_ones(self, app: App, after: Mapping[int, State]) -> None:
        """What waited behind odd ones runs where those are gone."""
        if all(after[i].status == 2 for i in self.good):
            return
        engine = plain_engine(self.url)
        gone = ", ".join(str(i) for i in self.odd if after[i].open)
        with engine.begin() as conn:
            conn.exec_driver_sql(f"DELETE FROM {TABLE} WHERE msg_id IN ({gone or 'NULL'})")
        engine.dispose()
        self._drain(app)
        left = [i for i, state in self._states().items() if i in self.good and state.status != 2]
        if left:
            self.harms.append(f"good messages {left} are not done, though nothing is before them")
        self._judge_runs(list(self.good))

    # ------------------------------------------------------------ judging

    def _judge_good(self, after: Mapping[int, State]) -> None:
        for object_id in sorted(set(self.good.values())):
            own = {i: s for i, s in sorted(after.items()) if s.object_id == object_id}
            held = any(state.status == 1 for state in own.values())
            first = next((i for i, state in own.items() if state.open), None)
            for i, state in own.items():
                if i not in self.good:
                    continue
                behind = first is not None and first < i
                if state.status not in (0, 2) or (behind and state.status == 2):
                    self.harms.append(f"good message {i} of {object_id} is at {state.status}")
                if state.status == 0 and not held and not behind:
                    self.harms.append(f"good message {i} of {object_id} was not run")
                self.figures["good, done" if state.status == 2 else "good, behind odd ones"] += 1
        self._judge_runs([i for i in self.good if after[i].status == 2])

    def _judge_runs(self, done: Sequence[int]) -> None:
        runs = [i for i in self.ran if i in self.good]
        if sorted(runs) != sorted(done):
            odd = Counter(runs)
            odd.subtract(done)
            wrong = {i: n for i, n in odd.items() if n}
            self.harms.append(f"good messages did not run once each: {wrong}")
        for object_id in set(self.good.values()):
            own = [i for i in runs if self.good[i] == object_id]
            if own != sorted(own):
                self.harms.append(f"out of order in {object_id}: {own}")

    def _judge_odd(self, app: App, before: Mapping[int, State], after: Mapping[int, State]) -> None:
        for i, odd in self.odd.items():
            if i not in after:
                self.harms.append(f"message {i} is gone: {odd}")
                continue
            try:
                found = app.ops.explain(i)
            except Exception as error:
                self.harms.append(f"explain {i}: {type(error).__name__}: {error!s:.500}: {odd}")
                continue
            if why := _why_not(found):
                self.harms.append(f"message {i}: {why}: {odd}")
            assert found is not None
            self.figures[str(found.reason)] += 1
            if not before[i].open and i in self.ran:
                self.harms.append(f"message {i} has run, but was finished: {odd}")
            if found.reason is Reason.DONE and before[i].open and i not in self.ran:
                self.harms.append(f"message {i} is done, but has not run: {odd}")


def _why_not(found: Explanation | None) -> str:
    """Why this is no end for an odd row; "" if it is one."""
    if found is None:
        return "nothing explains it"
    if found.reason in (Reason.DONE, Reason.DEAD):
        return ""
    if found.reason is Reason.BEHIND:
        return _why_not(found.behind)
    return "" if found.reason in PASSED_OVER else f"{found.reason}: {found.text}"


@dataclass(frozen=True)
class State:
    """Of a row, as the database sees it. status: None for one that is unknown. open: whether it
    holds back what is behind it. object_id: of the good ones only."""

    status: int | None
    open: bool
    object_id: str | None


def _place(odd: Odd) -> int:
    return odd.before


def _insert(columns: str, row: str) -> str:
    return f"INSERT INTO {TABLE} {columns} VALUES {row} RETURNING msg_id"


def listen(app: App, ran: list[int]) -> None:
    """Handlers for every topic; `ran`: the messages they were called with."""

    def called(then: Callable[[Message[Any]], Any]) -> Callable[[Message[Any]], Any]:
        def handle(msg: Message[Any]) -> Any:
            ran.append(msg.msg_id)
            return then(msg)

        return handle

    def fail(msg: Message[Any]) -> None:
        raise ValueError(f"no {msg.payload!r:.5000}")

    def come_later(msg: Message[Any]) -> RetryLater | None:
        return RetryLater(after=0) if ran.count(msg.msg_id) < 2 else None

    def reject(msg: Message[Any]) -> Reject:
        return Reject(f"not {msg.payload!r:.5000}")

    def write(msg: Message[Any], ctx: Any) -> None:
        ctx.connection.execute(EFFECTS.insert().values(msg_id=msg.msg_id))

    app.add_handler(None, called(lambda msg: None))
    app.add_handler("fails", called(fail), wait=wait_none())
    app.add_handler("later", called(come_later))
    app.add_handler("rejects", called(reject))
    app.add_handler("tx", write, transactional=True)


class _Told(logging.Handler):
    """Errors with a traceback that are not a handler's: our own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not str(error).startswith("no "):
            text = f"logged: {record.getMessage():.500} [{type(error).__name__}: {error!s:.500}]"
            if text not in self.faults:
                self.faults.append(text)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Alone: who keeps all records of thousands of rows, as pytest does, needs gigabytes."""
        logger = logging.getLogger("msgworker")
        logger.addHandler(self)
        before, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.propagate = before
            logger.removeHandler(self)
