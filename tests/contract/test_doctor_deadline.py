"""doctor within a deadline: what it finds until then, and what it names as not examined."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, doctor
from msgworker.doctor import rows, server
from msgworker.doctor.structure import Finding, fine
from msgworker.errors import TookTooLong
from tests.support.ops import NEW, put
from tests.support.sessions import too_slow

SWALLOW = {
    "held": (rows.World, "read"),
    "unseen": (rows, "instances"),
    "schedules": (rows.store, "look"),
    "plan": (server, "_candidates"),
}
"""Checks that leave a refused statement to another check: module, and what it reads by."""


def checks(monkeypatch: pytest.MonkeyPatch, *functions: Any) -> None:
    monkeypatch.setattr(doctor, "CHECKS", functions)


def examined(app: App, seconds: float) -> list[Finding]:
    """What doctor finds within so many seconds. A busy machine may not read in time what the table
    is: then it is asked again."""
    while True:
        with suppress(TookTooLong):
            return app.ops.within(seconds).doctor()


def quick(p: Any) -> list[Finding]:
    return [fine("quick", "found")]


def endless(p: Any) -> list[Finding]:
    return [fine("endless", str(too_slow(p.conn)))]


def elsewhere(p: Any) -> list[Finding]:
    with p.another() as conn:
        return [fine("elsewhere", str(too_slow(conn)))]


@pytest.mark.quick("postgresql")
@pytest.mark.requires("common_sql")
def test_doctor_tells_what_it_found_in_time_and_names_the_checks_that_were_not(app, monkeypatch):
    checks(monkeypatch, quick, endless, quick, elsewhere)
    app.ops.counts()
    found = examined(app, 4.0)
    assert [one.check for one in found] == ["quick", "quick", "time"]
    assert found[-1].text.startswith("not examined within 4 s: endless, elsewhere;")
    with app.engine.connect() as conn:  # and its connections have no deadline any more
        assert conn.scalar(sa.select(1)) == 1


def test_no_check_begins_when_the_time_of_doctor_is_over(app, monkeypatch):
    def lasting(p: Any) -> list[Finding]:
        time.sleep(1.0)
        p.conn.execute(sa.select(1))
        raise AssertionError("a statement has begun after the deadline")

    checks(monkeypatch, quick, lasting, lasting)
    found = examined(app, 1.3)
    assert [one.check for one in found][-1] == "time"
    assert "lasting" in found[-1].text


@pytest.mark.requires("doctor_asks", of="held|unseen|schedules|plan")
@pytest.mark.parametrize("name", SWALLOW)
def test_a_check_that_was_ended_is_not_one_that_found_nothing(app, monkeypatch, name):
    module, what = SWALLOW[name]

    def slow(conn_or_subject: Any, *_: Any, **__: Any) -> Any:
        return too_slow(getattr(conn_or_subject, "conn", conn_or_subject))

    monkeypatch.setattr(module, what, slow)
    check = {"held": rows.held, "unseen": rows.unseen, "plan": server.plan}
    checks(monkeypatch, check.get(name, rows.schedules))
    (found,) = examined(app, 1.0)
    assert found.text.startswith(f"not examined within 1 s: {name};")


@pytest.mark.requires("doctor_asks")
def test_a_setting_of_the_server_that_was_not_told_in_time_is_not_one_it_lacks(app, monkeypatch):
    def slow(conn: Any, *_: Any) -> Any:
        return too_slow(conn)

    monkeypatch.setattr(sa.Connection, "scalar", slow)
    checks(monkeypatch, server.settings)
    assert [one.check for one in examined(app, 1.0)][-1] == "time"


@pytest.mark.requires("common_sql")
def test_the_deadline_of_doctor_ends_also_what_it_reads_first(app, monkeypatch):
    monkeypatch.setattr(doctor, "subject_of", lambda engine, conn, *_: too_slow(conn))
    with pytest.raises(TookTooLong):
        app.ops.within(0.8).doctor()


def test_doctor_with_a_deadline_goes_over_a_few_rows_and_says_so(sqlite_app, monkeypatch):
    monkeypatch.setattr("msgworker.doctor.rows.FEW_ROWS", 2)
    monkeypatch.setattr("msgworker.doctor.rows.FEW_SECONDS", 0.0)
    put(sqlite_app, *[(str(n), NEW) for n in range(5)])
    told = [one.text for one in sqlite_app.ops.within(5.0).doctor() if one.check == "rows"]
    few = "only the newest 2 rows were looked at for odd statuses"
    assert told == [f"{few}; `msgworker doctor pkg.module:app` looks at more"]
    told = [one.text for one in sqlite_app.ops.doctor() if one.check == "rows"]
    assert told == ["every status is 0 (new), 1 (processing), 2 (done) or -1 (failed)"]
