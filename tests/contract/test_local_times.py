"""Tables whose instants are local times: due, delayed, shown and filtered at the right instants."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, MessageTable
from msgworker.config import load
from tests.engines import plain_engine
from tests.support.apps import created

ZONES = ("Asia/Shanghai", "America/New_York")
NAMES = {"msg_id": "id", "object_id": "obj", "payload": "body", "topic": "kind"}
KINDS = {
    "postgresql": ("TIMESTAMP", "TIMESTAMPTZ"),
    "mariadb": ("DATETIME(6)", "DATETIME", "TIMESTAMP(6)"),
    "sqlite": ("TEXT",),
}
KEYS = {
    "postgresql": "BIGSERIAL PRIMARY KEY",
    "mariadb": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
}


class Local:
    """A database whose sessions are in a zone, with a table of theirs that holds its times."""

    def __init__(self, database: Any, zone: str, kind: str) -> None:
        self.name, self.zone, self.kind = database.name, zone, kind
        self.engine = plain_engine(database.url)
        if self.name != "sqlite":
            event = sa.event.listens_for(self.engine, "connect")
            event(self._set_zone)
        every = ", ".join(f"{name} {kind} NULL" for name in ("available_at", "claimed_at"))
        with self.engine.begin() as conn:
            conn.exec_driver_sql(
                f"CREATE TABLE theirs (id {KEYS[self.name]}, obj VARCHAR(40), kind VARCHAR(40),"
                " status SMALLINT NOT NULL DEFAULT 0, error_try_times SMALLINT NOT NULL DEFAULT 0,"
                f" body TEXT, claimed_by VARCHAR(100), later_times SMALLINT NOT NULL DEFAULT 0,"
                f" {every}, created_at {kind} NULL, finished_at {kind} NULL)"
            )

    def _set_zone(self, raw: Any, _: Any) -> None:
        cursor = raw.cursor()
        if self.name == "postgresql":
            cursor.execute(f"SET TIME ZONE '{self.zone}'")
        else:
            offset = datetime.now(ZoneInfo(self.zone)).strftime("%z")
            cursor.execute(f"SET time_zone = '{offset[:3]}:{offset[3:]}'")
        raw.commit()

    def clock(self, seconds: float = 0.0) -> Any:
        """What a producer writes: its local time, so many seconds from now."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        if "TZ" in self.kind:
            return at
        local = at.astimezone(ZoneInfo(self.zone)).replace(tzinfo=None)
        return local.isoformat(" ", "milliseconds") if self.name == "sqlite" else local

    def app(self, **rules: Any) -> App:
        table = MessageTable("theirs", **NAMES, time_zone=self.zone, **rules)
        return created(App(self.engine, table=table, backoff_seconds=1))

    def insert(self, obj: str, available: float | None, created: float = 0.0) -> None:
        at = None if available is None else self.clock(available)
        values = {"obj": obj, "kind": "t", "body": "1", "available_at": at}
        values["created_at"] = self.clock(created)
        table = sa.table("theirs", *(sa.column(name) for name in values))
        with self.engine.begin() as conn:
            conn.execute(sa.insert(table).values(**values))


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=(0, 1, 2))
def local(database: Any, zone: str, request: pytest.FixtureRequest) -> Local:
    kinds = KINDS[database.name] if database.stand_in is None else ()
    if request.param >= len(kinds):
        pytest.skip("fewer types of columns there")
    return Local(database, zone, kinds[request.param])


@pytest.mark.quick("0-mariadb.*Shanghai-1")
@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_local_times_are_due_when_their_clock_shows_them(local: Local, delay: float) -> None:
    app, ran = local.app(visibility_delay_seconds=delay), list[Any]()
    app.add_handler("t", lambda msg: ran.append((msg.object_id, msg.created_at)))
    for obj, available in (("none", None), ("now", -1.0), ("late", 3000.0)):
        local.insert(obj, available, created=-5)
    app.drain(linger=0)
    assert sorted(obj for obj, _ in ran) == ["none", "now"]
    assert all(abs((datetime.now(UTC) - at).total_seconds()) < 30 for _, at in ran)
    soon = time.monotonic() + 2
    local.insert("soon", 2.0, created=-5)
    report = app.drain(linger=15)
    assert time.monotonic() > soon - 1  # some columns hold whole seconds
    assert sorted(obj for obj, _ in ran) == ["none", "now", "soon"]
    assert (report.done, report.left) == (1, 1)
    with app.engine.begin() as conn:
        (row,) = app.ops.find(status="new")
        assert 2900 < (row.available_at - datetime.now(UTC)).total_seconds() <= 3000
        app.send(conn, "t", 1, object_id="sent", delay=2000)
        app.send(conn, "t", 1, object_id="at", at=datetime.now(UTC) + timedelta(seconds=2000))
    waits = {row.object_id: row.available_at for row in app.ops.find(status="new")}
    for obj in ("sent", "at"):
        assert 1900 < (waits[obj] - datetime.now(UTC)).total_seconds() <= 2000.1


@pytest.mark.quick("0-postgresql.*Shanghai|2-mariadb.*York")
def test_what_we_write_is_read_back_as_the_same_instants(local: Local) -> None:
    app = local.app()

    @app.handler("t")
    def handle(msg: Any, ctx: Any) -> None:
        if msg.object_id == "fails":
            raise ValueError("once")

    local.insert("done", None, created=-7200)
    local.insert("fails", None, created=-60)
    begin = datetime.now(UTC)
    app.drain(linger=0, retry_linger=0)
    rows = {row.object_id: row for row in app.ops.find()}
    for row in rows.values():
        assert abs((row.claimed_at - begin).total_seconds()) < 30
    assert abs((rows["done"].finished_at - begin).total_seconds()) < 30
    assert -1 < (rows["fails"].available_at - begin).total_seconds() < 30
    assert 7100 < (begin - rows["done"].created_at).total_seconds() < 7300
    assert [row.object_id for row in app.ops.find(since=begin - timedelta(hours=1))] == ["fails"]
    ages = {count.status.value: count.oldest_seconds for count in app.ops.counts()}
    assert 50 < ages["failed"] < 120
    assert app.ops.purge(older_than=3600).changed == 0
    assert app.ops.purge(older_than=datetime.now(UTC) - timedelta(seconds=0.01)).changed == 1


@pytest.mark.quick("0-postgresql.*Shanghai")
def test_doctor_finds_a_table_of_another_zone(local: Local) -> None:
    def said(zone: str) -> list[str]:
        table = MessageTable("theirs", **NAMES, time_zone=zone)
        found = App(local.engine, table=table).ops.doctor()
        return [f.severity.value for f in found if f.check == "time zone"]

    local.app()
    local.insert("a", None)
    ahead = local.zone == "Asia/Shanghai"
    keeps_local = "TZ" not in local.kind and local.kind != "TIMESTAMP(6)"
    assert said(local.zone) == []
    assert said("UTC") == (["needed"] if keeps_local and ahead else [])
    if local.name == "sqlite":
        return
    with local.engine.begin() as conn:
        precise = "(6)" if "(6)" in local.kind else ""
        conn.exec_driver_sql("DELETE FROM theirs")
        conn.exec_driver_sql(
            f"ALTER TABLE theirs ALTER created_at SET DEFAULT CURRENT_TIMESTAMP{precise}"
            if local.name == "postgresql"
            else f"ALTER TABLE theirs MODIFY created_at {local.kind} NULL "
            f"DEFAULT CURRENT_TIMESTAMP{precise}"
        )
    assert said(local.zone) == []
    assert said("UTC") == (["needed"] if keeps_local else [])


def test_a_zone_that_nobody_knows_is_refused_with_a_near_name(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="did you mean Asia/Shanghai"):
        MessageTable("theirs", time_zone="Asia/Shangai")
    with pytest.raises(ConfigError, match="time_zone is the name of a time zone"):
        MessageTable("theirs", time_zone=8)  # type: ignore[arg-type]
    (tmp_path / "msgworker.toml").write_text('url = "sqlite:///x.db"\ntime_zone = "Asia/Tokyo"\n')
    app = App.from_config(load(folder=tmp_path))
    assert app.table.time_zone == "Asia/Tokyo"
