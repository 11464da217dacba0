"""Transactional handlers: their effects and the outcome are one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, AsyncContext, Context, Message, Reject, RetryLater
from msgworker.instance.running.outcome import OutcomePolicy
from tests.support.databases import async_url
from tests.support.fan_out import EFFECT, Trying, effects, records, write_effect
from tests.support.rows import send
from tests.support.sessions import cut

EFFECTS = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("msg_id", sa.BigInteger, nullable=False),
    sa.Column("amount", sa.Integer),
)


class Base(DeclarativeBase):
    pass


class Ledger(Base):
    __tablename__ = "ledger"
    id: Mapped[int] = mapped_column(sa.Identity(), primary_key=True)
    msg_id: Mapped[int] = mapped_column(sa.BigInteger)


def rows_of(app: App, table: sa.Table = EFFECTS) -> list[int]:
    with app.engine.connect() as conn:
        return sorted(conn.scalars(sa.select(table.c.msg_id)))


@pytest.mark.quick
def test_transactional_effects_commit_with_the_outcome(app, database, table):
    EFFECTS.metadata.create_all(app.engine)
    early: list[int] = []

    @app.handler("t", transactional=True, wait=wait_none())
    def post(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(EFFECTS.insert().values(msg_id=msg.msg_id, amount=1))
        with outside.connect() as other:  # not to be seen before the outcome
            mine = EFFECTS.c.msg_id == msg.msg_id
            early.extend(other.scalars(sa.select(EFFECTS.c.msg_id).where(mine)))

    outside = database.engine()
    ids = send(app, *[f"o{i % 5}" for i in range(40)])
    assert app.drain(linger=1).done == 40
    assert early == []
    assert rows_of(app) == ids
    assert set(table.statuses) == {2}


def test_transactional_effects_are_rolled_back_on_failure(app, table):
    EFFECTS.metadata.create_all(app.engine)

    @app.handler("t", transactional=True, wait=wait_none())
    def post(msg: Message, ctx: Context) -> Any:
        ctx.connection.execute(EFFECTS.insert().values(msg_id=msg.msg_id, amount=1))
        if msg.payload == "reject":
            return Reject("no")
        if msg.payload == "later":
            raise RetryLater(3600)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return None

    (first,) = send(app, "o", payload="twice")
    send(app, "p", payload="reject")
    send(app, "q", payload="later")
    report = app.drain(linger=1)
    assert (report.done, report.failed, report.retried) == (1, 1, 2)
    assert rows_of(app) == [first]
    assert table.rows("status", "error_try_times") == [(2, 2), (-1, 3), (0, 0)]


def test_transactional_handler_with_an_orm_session(app):
    Base.metadata.create_all(app.engine)

    @app.handler("t", transactional=True, wait=wait_none())
    def post(msg: Message, ctx: Context) -> None:
        ctx.session.add(Ledger(msg_id=msg.msg_id))
        if msg.payload == "flush":
            ctx.session.flush()
        if msg.payload == "commit":
            ctx.session.commit()  # its savepoint only
        if msg.payload == "fail" and ctx.attempt == 1:
            ctx.session.commit()
            raise ValueError

    ids = [send(app, "o", payload=payload)[0] for payload in ("add", "flush", "commit", "fail")]
    assert app.drain(linger=1).done == 4
    assert rows_of(app, Ledger.__table__) == ids


def test_transactional_handler_may_send(app, table):
    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        if msg.payload < 3:
            app.send(ctx.connection, "t", msg.payload + 1, object_id=msg.object_id)

    send(app, "o", payload=0)
    assert app.drain(linger=0).done == 4
    assert table.column("payload") == ["0", "1", "2", "3"]


def test_connection_is_for_transactional_handlers_only(app, table):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        _ = ctx.connection

    send(app, "o")
    app.drain(linger=0)
    assert "transactional=True" in table.one("last_error")


def test_effects_of_a_lost_claim_are_rolled_back(app, table):
    """In the handler's own transaction another owner gets the row: nothing may be committed."""
    effects = sa.Table("effects", sa.MetaData(), sa.Column("msg_id", sa.BigInteger))
    effects.create(app.engine)
    message = app.tables.message

    @app.handler("t", transactional=True, wait=wait_none())
    def handle(msg: Message, ctx: Any) -> None:
        ctx.connection.execute(effects.insert().values(msg_id=msg.msg_id))
        row = message.c.msg_id == msg.msg_id
        ctx.connection.execute(sa.update(message).where(row).values(claimed_by="other"))

    send(app, "a")
    app.drain(time_limit=30, linger=0.5)
    with app.engine.connect() as conn:
        assert conn.execute(sa.select(effects)).all() == []
    assert table.rows("status", "error_try_times", "claimed_by") == [(-1, 3, None)]


def lose(app: App, conn: sa.Connection) -> None:
    """Lose the connection and hide it, as an `except Exception` would."""
    cut(app, conn)
    with pytest.raises(DBAPIError):
        conn.execute(sa.select(sa.literal_column("1")))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_swallows_the_end_of_its_transaction_commits_nothing(sqlite_app, kind):
    """Some errors end SQLite's whole transaction; what followed was committed with the outcome."""
    app = sqlite_app
    if kind == "async":
        pytest.importorskip("aiosqlite")
        asyncio = pytest.importorskip("sqlalchemy.ext.asyncio", exc_type=ImportError)
        app = App(asyncio.create_async_engine(async_url(app.engine.url)))
    EFFECTS.metadata.create_all(app.engine)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE used_up (id INTEGER PRIMARY KEY AUTOINCREMENT, x)")
        conn.exec_driver_sql(f"INSERT INTO used_up (id) VALUES ({2**63 - 1})")

    runs = []

    def write(conn: sa.Connection, msg: Message) -> None:
        runs.append(msg.msg_id)
        for amount in (1, 2):
            with suppress(DBAPIError):
                conn.exec_driver_sql("INSERT INTO used_up (x) VALUES (1)")
            with suppress(StatementError):
                conn.execute(EFFECTS.insert().values(msg_id=msg.msg_id, amount=amount))

    async def post(msg: Message, ctx: AsyncContext) -> None:
        await ctx.connection.run_sync(write, msg)

    found = post if kind == "async" else lambda msg, ctx: write(ctx.connection, msg)
    app.add_handler("t", found, transactional=True, wait=wait_none(), max_tries=2)
    send(app, "a")
    assert app.drain(linger=0, retry_linger=5, time_limit=2).done == 0
    assert runs
    assert rows_of(app) == []


DEADLOCK = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'",
}


@pytest.mark.requires("common_sql", "row_locks")
@pytest.mark.parametrize("how", ["wrapped", "another", "swallowed"])
def test_a_deadlock_counts_no_try_whatever_the_handler_makes_of_it(app, table, how):
    runs = []

    @app.handler("t", transactional=True, max_tries=1)
    def handle(msg: Message, ctx: Context) -> None:
        runs.append(how)
        if len(runs) > 1:
            return
        try:
            ctx.connection.exec_driver_sql(DEADLOCK[app.engine.dialect.name])
        except DBAPIError as error:
            if how == "wrapped":
                raise LookupError("no account") from error
        if how == "another":
            raise LookupError("no account")

    send(app, "a")
    app.drain(linger=0, time_limit=20)
    assert (len(runs), table.rows("status", "error_try_times")) == (2, [(2, 0)])


@pytest.mark.requires("common_sql", "row_locks")
def test_a_deadlock_that_ended_with_its_savepoint_is_not_taken_for_what_fails_later(app, table):
    """On MySQL it ends the transaction, savepoints or not."""
    runs = []

    @app.handler("t", transactional=True, max_tries=1)
    def handle(msg: Message, ctx: Context) -> None:
        runs.append(msg.msg_id)
        with suppress(DBAPIError), ctx.connection.begin_nested():
            ctx.connection.exec_driver_sql(DEADLOCK[app.engine.dialect.name])
        ctx.connection.exec_driver_sql("SELECT no_column")

    send(app, "a")
    app.drain(linger=0, time_limit=20)
    assert "no_column" in table.one("last_error") or app.engine.dialect.name == "mysql"
    assert len(runs) == 1 or app.engine.dialect.name == "mysql"


@pytest.mark.requires("sessions")
@pytest.mark.quick("postgresql")
def test_a_handler_that_swallows_a_lost_connection_is_run_again(app, table):
    EFFECT.create(app.engine)
    runs: list[int] = []

    @app.handler("t", transactional=True)
    def handle(msg: Any, ctx: Any) -> None:
        runs.append(msg.msg_id)
        write_effect(1, ctx.connection)
        if len(runs) == 1:
            lose(app, ctx.connection)

    send(app, "a")
    assert app.drain(linger=0).done == 1
    assert effects(app) == {"1": 1}
    assert len(runs) == 2
    assert table.one("error_try_times") == 0


@pytest.mark.requires("sessions")
@pytest.mark.quick("mariadb")
def test_an_item_that_swallows_a_lost_connection_is_run_again(app):
    EFFECT.create(app.engine)
    runs: list[int] = []

    def act(n: int, conn: sa.Connection) -> None:
        runs.append(n)
        write_effect(n, conn)
        if len(runs) == 1:
            lose(app, conn)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, [1], threads=1, transactional_items=True))
    assert trying.drain().done == 1
    assert runs == [1, 1]
    assert effects(app) == {"1": 1}
    assert set(records(app)) == {"1"}


@pytest.mark.long
def test_a_transaction_that_was_not_committed_is_not_done_though_its_error_cannot_be_judged(
    sqlite, monkeypatch
):
    """As without memory, where to judge fails, too."""
    app, judge, ran, failed = App(sqlite.url), OutcomePolicy.raised, list[int](), list[str]()
    app.create_schema()
    EFFECTS.metadata.create_all(app.engine)

    def commits(conn: sa.Connection) -> None:
        if ran and "commit" not in failed:
            failed.append("commit")
            raise ValueError("not committed")

    def judges(*args: Any, **options: Any) -> Any:
        if "judge" not in failed:
            failed.append("judge")
            raise MemoryError
        return judge(*args, **options)

    @app.handler("t", transactional=True, wait=wait_none())
    def post(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(EFFECTS.insert().values(msg_id=msg.msg_id, amount=1))
        ran.append(msg.msg_id)

    sa.event.listen(app.engine, "commit", commits)
    monkeypatch.setattr(OutcomePolicy, "raised", judges)
    (msg_id,) = send(app, "a")
    report = app.drain(linger=0, retry_linger=30)
    assert failed == ["commit", "judge"]
    assert (report.done, report.retried, ran) == (1, 1, [msg_id, msg_id])
    assert rows_of(app) == [msg_id]


def test_what_is_committed_by_itself_is_not_refused_at_the_end(mariadb):
    """A deadlock has ended the transaction of its own statement only."""
    deadlock = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'deadlock'"
    engine = App(mariadb.url).engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        with pytest.raises(sa.exc.OperationalError, match="1213"):
            conn.exec_driver_sql(deadlock)
        conn.exec_driver_sql("SELECT 1")
        conn.commit()
