"""The command `schedules`, and schedules of the configuration in `run` and `drain`."""

from __future__ import annotations

import json
from pathlib import Path

from msgworker.config import load
from tests.support.programs import Cli
from tests.support.timers import put_back, rows, timer

AT = ("--url", "sqlite:///crm.db")
TOML = '[schedule.nightly]\ncron = "0 2 * * *"\ntz = "Asia/Shanghai"\ntopic = "settle"\n'


def test_schedules_of_the_configuration_are_fired_by_a_drain(crm: Cli, folder: Path, app) -> None:
    (folder / "msgworker.toml").write_text(TOML)
    assert crm("drain", "crm:app", "--linger", "0").exit_code == 0
    tick = put_back(app, "nightly", 5)
    assert "done=1" in crm("drain", "crm:app", "--linger", "0").stdout
    assert rows(app)["nightly"].last_at == tick
    shown = crm("show", "1", *AT).stdout
    assert f"sent for {tick:%Y-%m-%d %H:%M:%S} UTC" in shown
    assert "sent by schedule nightly" in crm("explain", "1", *AT).stdout


def test_schedules_lists_them_with_their_next_ticks(crm: Cli, folder: Path, app) -> None:
    assert crm("schedules", *AT).stdout == "there is no schedule\n"
    (folder / "msgworker.toml").write_text(TOML)
    text = crm("schedules", "crm:app").stdout
    assert "nightly" in text
    assert "0 2 * * * (Asia/Shanghai)" in text
    assert "not started yet" in text
    early = crm("schedules", "pause", "nightly", "--app", "crm:app")
    assert (early.exit_code, "the first start of an instance" in early.stderr) == (5, True)
    crm("drain", "crm:app", "--linger", "0")
    (one,) = json.loads(crm("schedules", "crm:app", "--json").stdout)
    assert len(one["next_times"]) == 5
    assert (one["name"], one["declared"], one["stored"]) == ("nightly", True, True)


def test_schedules_says_how_many_ticks_were_skipped(crm: Cli, folder: Path, app) -> None:
    (folder / "msgworker.toml").write_text(TOML + 'overlap = "skip"\n')
    crm("drain", "crm:app", "--linger", "0")
    assert "overlap skip" in crm("schedules", *AT).stdout
    crm("schedules", "run-now", "nightly", *AT)
    again = crm("schedules", "run-now", "nightly", *AT)
    assert (again.exit_code, again.stdout) == (1, "")
    assert 'schedule nightly has overlap="skip": wait for that message' in again.stderr
    put_back(app, "nightly", 5)
    app.add_handler("settle", lambda msg: None)
    app.add_configured(load(environ={}, folder=folder))
    timer(app).ended()
    assert "overlap skip: 1 skipped" in crm("schedules", *AT).stdout
    (one,) = json.loads(crm("schedules", *AT, "--json").stdout)
    assert (one["overlap"], one["skipped"], one["replaced"]) == ("skip", 1, 0)


def test_schedules_pauses_resumes_sends_and_deletes(crm: Cli, folder: Path, app) -> None:
    (folder / "msgworker.toml").write_text(TOML)
    crm("drain", "crm:app", "--linger", "0")
    (folder / "msgworker.toml").unlink()
    said = crm("schedules", "pause", "nightly", *AT, "--reason", "month end", "--actor", "anna")
    assert said.stdout == "paused schedule nightly\n"
    assert (
        crm("schedules", "pause", "nightly", *AT).stdout == "schedule nightly is paused already\n"
    )
    assert "by anna: month end" in crm("schedules", *AT).stdout
    assert "month end" in crm("audit", *AT).stdout
    sent = crm("schedules", "run-now", "nightly", *AT)
    assert sent.stdout == "sent the message of schedule nightly: message 1\n"
    told = json.loads(crm("schedules", "resume", "nightly", *AT, "--json").stdout)
    assert (told["changed"], told["action"], told["dry_run"]) == (1, "resume", False)
    assert crm("schedules", "resume", "nightly", *AT).exit_code == 5  # as a topic's
    dry = crm("schedules", "delete", "nightly", *AT, "--dry-run")
    assert dry.stdout == "would have deleted schedule nightly\n"
    assert crm("schedules", "delete", "nightly", *AT).exit_code == 0
    gone = crm("schedules", "delete", "nightly", *AT)
    assert (gone.exit_code, "no schedule 'nightly'" in gone.stderr) == (5, True)


def test_schedules_refuses_what_it_does_not_know(crm: Cli, folder: Path) -> None:
    for words, reason in (
        (["paus", "x"], "did you mean pause"),
        (["pause"], "name the schedule"),
        (["--reason", "x"], "what is to be done"),
    ):
        said = crm("schedules", *words, *AT)
        assert (said.exit_code, reason in said.stderr) == (2, True)
    (folder / "msgworker.toml").write_text('[schedule.x]\nevry = "5m"\n')
    said = crm("drain", "crm:app")
    assert (said.exit_code, "did you mean every" in said.stderr) == (2, True)


def test_a_schedule_without_its_table_ends_with_4(crm: Cli, folder: Path, app) -> None:
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_schedule")
    (folder / "msgworker.toml").write_text(TOML)
    said = crm("drain", "crm:app", "--linger", "0")
    assert (said.exit_code, "init-db" in said.stderr) == (4, True)
