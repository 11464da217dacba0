"""Writes from pages: rerun, discard and cancel of messages; topics, instances, schedules, locks."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.coordination import DatabaseLocks
from msgworker.errors import TookTooLong
from msgworker.message import State
from msgworker.ops import selection as counting
from msgworker.ops.results import Progress
from msgworker.store import bounded, change, history
from msgworker.store.audit import Kind
from msgworker.store.history import Counts, Minute
from msgworker.table.build import JOB_TABLE, RAN_COUNTS
from msgworker.web.pages import changing
from msgworker.web.site import MOST_COUNTS
from msgworker.web.threads import Busy, RunningWrites, Watch
from msgworker.web.writes import CHANGES, ON_THINGS
from tests.support.browsing import Browser, Page
from tests.support.leases import dead_holds, registered
from tests.support.ops import DONE, FAILED, NEW, RUNNING, audited, many_dead, put
from tests.support.rows import Table, edit, send
from tests.support.timers import edit_row
from tests.support.waiting import until
from tests.support.web import one_loop


def _states(app: App, ids: list[int]) -> list[str]:
    return [str(getattr(app.ops.show(i), "status", None)) for i in ids]


def _change(ann: Browser, kind: str, code: int = 200, **query: Any) -> Page:
    return ann.get(f"/change/{kind}?{urlencode(query)}", code)


def test_a_rerun_tells_counts_and_skips_first_and_then_does_what_it_told(
    sqlite_app: App, ann: Browser
) -> None:
    ids = put(sqlite_app, ("a", FAILED), ("b", FAILED), ("c", FAILED), ("c", DONE))
    page = _change(ann, "rerun", status="dead")
    assert "would change2" in page.main
    assert "skipped1" in page.main
    assert "a later one ran" in page.main
    assert _states(sqlite_app, ids) == ["dead", "dead", "dead", "done"]
    done = ann.send(page, "/change/rerun", reason="INC-4711", rate="100")
    assert "Done" in done.main
    assert "changed2 of 2" in done.main
    assert _states(sqlite_app, ids) == ["new", "new", "dead", "done"]
    (entry,) = sqlite_app.ops.audit()
    assert (entry.kind, entry.actor, entry.reason, entry.changed) == ("rerun", "ann", "INC-4711", 2)
    assert str(entry.source).startswith("web, ")
    assert f"/audit/{entry.op_id}" in done.links
    ann.get(f"/audit/{entry.op_id + 1}", 404)
    assert "INC-4711" in ann.get(done.link("operation")).main


@pytest.mark.parametrize(
    ("order", "after"),
    [
        ("", ["dead", "done", "dead"]),
        ("successors", ["new", "done", "new"]),
        ("also_done", ["new"] * 3),
        ("force", ["new", "done", "new"]),
    ],
)
def test_what_is_done_about_the_order_is_chosen_first(
    sqlite_app: App, ann: Browser, order: str, after: list[str]
) -> None:
    ids = put(sqlite_app, ("c", FAILED), ("c", DONE), ("c", FAILED))
    page = _change(ann, "rerun", status="dead", topic="t", order=order)
    chosen = [one for one in page.tree.all("input", type="radio") if "checked" in one.attrs]
    assert [one.attrs["value"] for one in chosen] == [order]
    if order == "":  # the last one may run
        after = ["dead", "done", "new"]
    ann.send(page, "/change/rerun", reason="again")
    assert _states(sqlite_app, ids) == after


def test_a_page_with_nothing_to_rerun_says_what_was_skipped(sqlite_app: App, ann: Browser) -> None:
    first, _ = put(sqlite_app, ("c", FAILED), ("c", DONE))
    page = _change(ann, "rerun", ids=first)
    assert "There is nothing to rerun: 1 message was skipped, for the reason above." in page.main
    page = _change(ann, "rerun", topic="nobody")
    assert "There is nothing to rerun." in page.main


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        ("discard", ["dead", "processing", "done", "dead", "dead"]),
        ("cancel", ["dead", "processing", "done", "dead", "dead"]),
    ],
)
def test_messages_are_given_up_by_a_selection(
    sqlite_app: App, ann: Browser, kind: str, states: list[str]
) -> None:
    rows = [("a", NEW), ("b", RUNNING), ("c", DONE), ("d", FAILED)]
    ids = put(sqlite_app, *rows) + put(sqlite_app, ("e", FAILED), tries=1)
    done = _change(ann, kind, ids=ids[2]).main
    assert "1 message was skipped" in done
    assert "force" not in done  # a choice of reruns alone
    ann.send(_change(ann, kind, topic="t"), f"/change/{kind}", reason="no use")
    assert _states(sqlite_app, ids) == states
    if kind == "cancel":
        found = sqlite_app.ops.show(ids[1])
        assert found is not None
        assert found.cancel is not None
        assert "cancel requested" in ann.get(f"/messages/{ids[1]}").main


def test_a_selection_that_has_changed_since_it_was_counted_is_not_changed(
    sqlite_app: App, ann: Browser
) -> None:
    (first,) = put(sqlite_app, ("a", FAILED))
    by_id = _change(ann, "rerun", ids=first, order="successors")
    page = _change(ann, "rerun", status="dead")
    put(sqlite_app, ("b", FAILED), ("a", FAILED))
    for one in (by_id, page):
        done = ann.send(one, "/change/rerun", reason="again")
        assert "It failed" in done.main
        assert "Count again" in done.main
    assert _states(sqlite_app, [first]) == ["dead"]


@pytest.mark.parametrize(("extent", "states"), [("counted", 3), ("all", 5)])
def test_of_many_those_that_were_counted_are_changed_or_all_if_that_is_chosen(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch, extent: str, states: int
) -> None:
    monkeypatch.setattr(changing, "COUNTED", 3)
    ids = put(sqlite_app, *((f"o{n}", NEW) for n in range(5)))
    page = _change(ann, "discard", status="new")
    assert f"only the first 3, up to message {ids[2]}" in page.main
    assert "would changeat least 3" in page.main
    assert "extent" not in page.form("/change/discard")  # the viewer chooses
    refused = ann.send(page, "/change/discard", 400, reason="no use")
    assert "choose how many" in refused.main
    assert _states(sqlite_app, ids) == ["new"] * 5
    ann.send(page, "/change/discard", reason="no use", extent=extent)
    assert _states(sqlite_app, ids) == ["dead"] * states + ["new"] * (5 - states)


def test_a_page_counts_for_a_moment_and_on_when_asked_to(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FIRST_SIZE", 3)
    monkeypatch.setattr(changing, "COUNT_SECONDS", 0.001)
    ids = put(sqlite_app, *((f"o{n}", NEW) for n in range(5)))
    page = _change(ann, "discard", status="new")
    assert f"only the first 3, up to message {ids[2]}" in page.main
    (onward,) = [one for one in page.links if "count=on" in one]
    page = ann.get(onward)
    assert "would change5" in page.main
    assert "Count on" not in page.main
    ann.send(page, "/change/discard", reason="no use")
    assert _states(sqlite_app, ids) == ["dead"] * 5


def test_where_none_was_counted_all_of_the_selection_can_be_chosen(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = put(sqlite_app, ("a", FAILED), ("b", FAILED))

    def late(*_: Any, **__: Any) -> None:
        raise TookTooLong(1)

    with monkeypatch.context() as patched:
        patched.setattr(change, "ran_later", late)
        page = _change(ann, "rerun", status="dead")
    assert "the time was up before any was found" in page.main
    ann.send(page, "/change/rerun", 400, reason="again")  # nothing was chosen
    assert _states(sqlite_app, ids) == ["dead", "dead"]
    ann.send(page, "/change/rerun", reason="again", extent="all")
    assert _states(sqlite_app, ids) == ["new", "new"]


def test_dry_runs_leave_threads_to_the_pages(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sqlite_app, ("a", NEW))
    real, counting, go = bounded.ids_of_filter, threading.Semaphore(0), threading.Event()

    def page(*args: Any, **kwargs: Any) -> Any:
        counting.release()
        assert go.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(bounded, "ids_of_filter", page)
    ends = []

    def look() -> None:
        ends.append(ann.client.get("/change/discard?status=new").status_code)

    threads = [threading.Thread(target=look) for _ in range(MOST_COUNTS)]
    for one in threads:
        one.start()
    for _ in threads:
        assert counting.acquire(timeout=30)
    answer = ann.client.get("/change/discard?status=new")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    ann.get("/messages")
    go.set()
    for one in threads:
        one.join()
    assert ends == [200] * MOST_COUNTS
    assert _change(ann, "discard", status="new").status == 200


def test_a_form_with_a_wrong_field_changes_nothing(
    sqlite_app: App, ann: Browser, subtests: Any
) -> None:
    (first,) = put(sqlite_app, ("a", FAILED))
    for fields in (
        {"reason": "  "},
        {"extent": "x"},
        {"up_to": "x"},
        {"rate": "0"},
        {"rate": "x"},
        {"order": "x"},
    ):
        with subtests.test(fields=fields):
            page = _change(ann, "rerun", ids=first)
            ann.send(page, "/change/rerun", 400, **{"reason": "again"} | fields)
            assert _states(sqlite_app, [first]) == ["dead"]
            assert audited(sqlite_app) == []


def test_a_change_of_all_messages_is_not_offered(ann: Browser) -> None:
    for kind in CHANGES:
        assert "choose the messages" in _change(ann, kind, 400).main
    ann.get("/change/purge?ids=1", 404)


def test_a_slow_rerun_shows_how_far_it_is_and_can_be_ended_and_continued(
    sqlite_app: App, ann: Browser
) -> None:
    many_dead(sqlite_app, 40)
    page = _change(ann, "rerun", topic="t")
    running = ann.send(page, "/change/rerun", reason="slowly", rate="8")
    assert "It runs" in running.main
    url = running.url.partition("?")[0].replace("http://dashboard.test", "")
    assert "slowly" not in running.main
    assert "Running now" in ann.get("/audit").main
    ann.send(running, f"{url}/end")
    until(lambda: "ended before" in ann.get(url).main, "it is ended")
    (entry,) = sqlite_app.ops.audit()
    assert 0 < entry.changed < 40
    assert f"--operation {entry.op_id}" in ann.get(url).main
    assert sqlite_app.ops.rerun(operation=entry.op_id).changed == 40


def test_the_audit_can_be_asked_for_every_kind(sqlite_app: App, ann: Browser) -> None:
    (msg_id,) = put(sqlite_app, ("a", NEW))
    with sqlite_app.engine.begin() as conn:
        sqlite_app.ops.note_sent(conn, msg_id, topic="t", actor="ann")
    sqlite_app.ops.discard(msg_id, reason="r")
    page = ann.get("/audit?kind=send")
    assert "<option selected>send</option>" in page.body
    assert re.findall(r'data-label="what">([^<]+)<', page.body) == ["send"]
    assert set(get_args(Kind)) <= set(re.findall(r"<option>([^<]+)<", ann.get("/audit").body))


def test_a_write_that_this_process_does_not_know_leads_to_the_audit(ann: Browser) -> None:
    page = ann.get("/writes/0123456789abcdef?op=17", 404)
    assert "/audit/17" in page.links
    assert "/audit" in ann.get("/writes/x", 404).links


def test_the_page_of_topics_tells_how_long_each_took_in_a_window(
    sqlite_app: App, ann: Browser
) -> None:
    put(sqlite_app, ("A", DONE), topic="settle")
    ran = [0] * len(RAN_COUNTS)
    ran[7] = 100  # between 1 s and 3 s
    with sqlite_app.engine.begin() as conn:
        now = history.database_seconds(conn, sqlite_app.tables)
        at = datetime.fromtimestamp(now // 60 * 60 - 7200, UTC)
        counts = {"settle": Counts(done=1234, ran_seconds=200.0, ran=ran)}
        history.write(conn, sqlite_app.tables, [Minute(at, "old", counts)])
    assert "1,234" not in ann.get("/topics").main
    page = ann.get(ann.get("/topics").link("6h"))
    assert "1,234" in page.main
    assert "up to 3.0s, up to 3.0s" in page.main  # the bound
    assert ann.client.get("/topics?window=2h").status_code == 400
    told = ann.client.get("/api/v1/metrics/topics?window=6h").json()
    assert [(one["topic"], one["done"]) for one in told["topics"]] == [("settle", 1234)]


def test_topics_are_paused_resumed_and_said_so(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sqlite_app, ("o", NEW), topic="<i>odd & topic")
    monkeypatch.setattr("msgworker.web.site.SHARED_SECONDS", 60.0)
    with one_loop(ann.client):
        page = ann.get("/topics")
        act = ann.get(page.link("Pause…"))
        done = ann.send(act, "/act/pause-topic", reason="ORA-1 <b>")
        assert "Done" in done.main
        assert "paused by ann" in ann.get("/topics").main  # what was shared is forgotten
    (found,) = sqlite_app.ops.pauses()
    assert (found.topic, found.reason) == ("<i>odd & topic", "ORA-1 <b>")
    act = ann.get(ann.get("/topics").link("Resume…"))
    ann.send(act, "/act/resume-topic", reason="over")
    assert sqlite_app.ops.pauses() == []
    act = ann.get("/act/resume-topic?name=other")
    assert "It would change nothing" in act.main


def test_a_job_is_paused_resumed_sealed_and_cancelled(sqlite_app: App, ann: Browser) -> None:
    job = sqlite_app.job("month <end>", on_complete="report")
    (found,) = send(sqlite_app, "o", job=job)
    page = f"/jobs/{job.job_id}"
    ann.send(ann.get(ann.get(page).link("Pause…")), "/act/pause-job", reason="the bank is closed")
    paused = ann.get(page).main
    assert "paused by ann" in paused
    assert "the bank is closed" in paused
    until(lambda: "month <end>" in ann.get("/").main, "the overview names it")
    ann.send(ann.get(ann.get(page).link("Resume…")), "/act/resume-job", reason="over")
    assert sqlite_app.ops.paused_jobs() == []
    ann.send(ann.get(ann.get(page).link("Seal…")), "/act/seal-job", reason="its producer died")
    assert "Seal…" not in ann.get(page).main
    act = ann.get(ann.get(page).link("Cancel…"))
    assert "1 message would be cancelled" in act.main
    ann.send(act, "/act/cancel-job", reason="wrong month")
    assert sqlite_app.ops.job(job.job_id).state == "cancelled"
    assert _states(sqlite_app, [found]) == [State.DEAD]
    assert f"/jobs/{job.job_id}" in ann.get(f"/messages/{found}").links
    refused = ann.get("/act/pause-job?name=x")
    assert "an id is a whole number" in refused.main


def test_the_page_of_a_job_says_what_holds_it_and_offers_the_way_out(
    sqlite_app: App, ann: Browser
) -> None:
    with sqlite_app.job("month end", on_dead="wait", on_complete="report") as job:
        one, two = send(sqlite_app, "o", "p", topic="<i>t", job=job)
    page = f"/jobs/{job.job_id}"

    def shows(*texts: str, but: str = "…?") -> Any:
        found = ann.get(page)
        assert all(text in found.main for text in texts), found.main
        assert but not in found.main
        return found

    shows("held", "2 wait: no instance lives", but=" left.")
    registered(sqlite_app, "alive-1")
    sqlite_app.ops.pause("<i>t", actor="ann")
    act = ann.get(shows("held", "2 wait: topic <i>t is paused by ann").link("Resume the topic…"))
    ann.send(act, "/act/resume-topic", reason="over")
    shows("running", "Pause…", but="Held")
    for msg_id in (one, two):
        edit(sqlite_app, msg_id, status=-1, error_try_times=3, last_error="ValueError: no")
    found = shows("waits", "it waits for 2 dead messages", "Cancel…", but="Pause…")
    assert "it waits for 2 dead" in ann.get("/jobs").main
    failed = ann.get(found.link("its failures"))
    assert "ValueError: no" in failed.main
    assert f"job={job.job_id}" in failed.link("Rerun…")
    assert "Nothing has failed by these filters" in ann.get("/failures?job=4711").main
    for way in ("Rerun its dead messages…", "Discard its dead messages…"):
        assert "2 messages" in ann.get(found.link(way)).main
    edit(sqlite_app, two, status=2)
    sqlite_app.ops.discard(one, reason="paid by hand", actor="ann")
    shows("report (it waits for dead ones)", but="its dead messages…")
    edit(sqlite_app, one, last_error="ValueError: no")
    with sqlite_app.engine.begin() as conn:
        table = JOB_TABLE.of(sqlite_app.tables)
        conn.execute(sa.update(table).values(completed_at=table.c.opened_at, done=1, dead=1))
    shows("1 done, 1 dead", "Rerun its dead messages…", but="Cancel what")
    sqlite_app.ops.rerun(job=job.job_id, actor="ann")
    found = shows("It stays completed", "50.0 %", "1 unfinished again", but="Rerun its dead")
    assert "1 message" in ann.get(found.link("Cancel what is unfinished…")).main


def test_a_dead_instance_is_released_and_a_live_one_only_when_forced(
    sqlite_app: App, ann: Browser
) -> None:
    (found,) = put(sqlite_app, ("o", RUNNING))
    dead_holds(sqlite_app, Table(sqlite_app), "dead-1", msg_id=found)
    registered(sqlite_app, "live-1", ttl=600)
    page = ann.get("/instances")
    assert "its lease has run out" in page.main
    act = ann.get("/act/release?name=dead-1")
    assert "1 message would be given back" in act.main
    ann.send(act, "/act/release", reason="its host is gone")
    assert _states(sqlite_app, [found]) == ["failed"]
    act = ann.get("/act/release?name=live-1")
    assert "alive" in act.main
    with pytest.raises(AssertionError, match="no form"):
        act.form("/act/release")


def test_locks_are_shown_with_partitions_apart_and_taken_away_by_admins(
    sqlite_app: App, visit: Any
) -> None:
    with_locks = DatabaseLocks(sqlite_app.engine)
    held = with_locks.acquire("month <end>", "crm-1", ttl=600)
    for name in ("inbox:member:crm-1", "inbox:shard:3", "inbox:shard:4"):
        assert with_locks.acquire(name, "crm-1", ttl=600)
    assert held
    page = visit(sqlite_app).get("/locks")
    assert "month <end>" in page.main
    assert "3, 4" in page.main
    visit(sqlite_app, "operator").get("/act/release-lock?name=month%20%3Cend%3E", 403)
    ann = visit(sqlite_app)
    act = ann.get("/act/release-lock?name=month%20%3Cend%3E&force=1")
    ann.send(act, "/act/release-lock", reason="stuck")
    assert [one.name for one in with_locks.held("month")] == []
    with_locks.close()


def test_locks_of_another_centre_are_shown_and_taken_away(
    sqlite_app: App, visit: Any, tmp_path: Path
) -> None:
    assert "--locks URL" in visit(sqlite_app).get("/locks").main
    visit(sqlite_app).get("/act/release-lock-elsewhere?name=night", 404)
    other = DatabaseLocks(sa.create_engine(f"sqlite:///{tmp_path / 'locks.db'}"))
    other.create_schema()
    assert other.acquire("night", "crm-9", ttl=600)
    assert other.acquire("inbox:shard:7", "crm-9", ttl=600)
    ann = visit(sqlite_app, locks=other)
    page = ann.get("/locks")
    assert "Partitions of inbox" in page.main
    assert "night" in page.main
    assert "--locks URL" not in page.main
    assert [one["name"] for one in _items(ann, "/api/v1/locks")] == []
    names = [one["name"] for one in _items(ann, "/api/v1/locks?centre=other")]
    assert names == ["inbox:shard:7", "night"]
    act = ann.get("/act/release-lock-elsewhere?name=night&force=1")
    ann.send(act, "/act/release-lock-elsewhere", reason="stuck")
    assert [one.name for one in other.held()] == ["inbox:shard:7"]
    assert [one.kind for one in sqlite_app.ops.audit()] == ["release-lock"]
    other.close()


def test_the_locks_of_the_database_are_shown_while_the_lock_centre_is_away(
    sqlite_app: App, visit: Any
) -> None:
    own = DatabaseLocks(sqlite_app.engine)
    assert own.acquire("month-end", "crm-1", ttl=600)
    ann = visit(sqlite_app, locks="redis://ann:s3cret@127.0.0.1:1/0")
    page = ann.get("/locks")
    assert "month-end" in page.main
    assert "cannot use Redis" in page.main
    assert "s3cret" not in page.body
    assert ann.client.get("/api/v1/locks?centre=other").status_code == 503
    assert ann.client.get("/api/v1/locks").status_code == 200
    own.close()


def _items(browser: Browser, url: str) -> Any:
    return browser.client.get(url).json()["items"]


def test_schedules_are_paused_resumed_run_and_deleted(sqlite_app: App, ann: Browser) -> None:
    sqlite_app.add_handler("t", lambda msg: None)
    sqlite_app.every("24h", topic="t", name="nightly")
    assert "not in the table yet" in ann.get("/schedules").main
    sqlite_app.drain(linger=0)
    for kind, told in (
        ("pause-schedule", "paused by ann"),
        ("resume-schedule", "fires"),
        ("run-schedule", "fires"),
        ("delete-schedule", "not in the table yet"),
    ):
        act = ann.get(f"/act/{kind}?name=nightly")
        assert "Done" in ann.send(act, f"/act/{kind}", reason="bank closed").main, kind
        shown = ann.get("/schedules").main
        assert (told in shown, ": bank closed" in shown) == (True, kind == "pause-schedule"), kind
    assert "there is no schedule" in ann.get("/act/pause-schedule?name=no").main
    assert [one.kind for one in sqlite_app.ops.audit()] == [
        "delete-schedule",
        "run-schedule",
        "resume-schedule",
        "pause-schedule",
    ]


WRITES = [
    *(("POST", f"/change/{kind}", {"ids": "1", "reason": "x"}, "operator") for kind in CHANGES),
    *(
        ("POST", f"/act/{act.kind}", {"name": "x", "reason": "x"}, str(act.role))
        for act in ON_THINGS.values()
    ),
    ("POST", "/edit/1", {"topic": "u", "save": "1", "reason": "x"}, "operator"),
    ("POST", "/writes/x/end", {}, "operator"),
]


def test_the_page_of_schedules_says_what_was_skipped(sqlite_app: App, ann: Browser) -> None:
    sqlite_app.add_handler("t", lambda msg: None)
    sqlite_app.every("24h", topic="t", name="nightly", overlap="skip")
    sqlite_app.drain(linger=0)
    edit_row(sqlite_app, "nightly", skipped=12, replaced=1)
    page = ann.get("/schedules").main
    assert "a tick while the message before it has not ended: skipped" in page
    assert "12 ticks skipped, 1 message replaced" in page


def test_a_write_needs_its_role_and_the_token_of_the_form(
    sqlite_app: App, visit: Any, subtests: Any
) -> None:
    for method, path, fields, role in WRITES:
        with subtests.test(method=method, path=path, fields=fields, role=role):
            lower = {"operator": "viewer", "admin": "operator"}[role]
            ann = visit(sqlite_app, lower)
            token = ann.get("/").tree.all("input", name="csrf")[0].attrs["value"]
            ann.post(path, 403, csrf=token, **fields)
            visit(sqlite_app, "admin").post(path, 403, **fields)
            if path.startswith(("/change", "/act")):
                query = urlencode(fields)
                ann.get(f"{path}?{query}", 403)


def test_looking_never_writes(sqlite_app: App, ann: Browser) -> None:
    (found,) = put(sqlite_app, ("o", FAILED))
    (waits,) = send(sqlite_app, "p")
    for kind in CHANGES:
        _change(ann, kind, ids=f"{found},{waits}")
    for kind, act in ON_THINGS.items():
        ann.get(f"/act/{kind}?name=t&force=1", 404 if act.elsewhere else 200)
    assert sqlite_app.ops.audit() == []
    assert _states(sqlite_app, [found, waits]) == [State.DEAD, State.NEW]


# ---------------------------------------------------------------- writes


def test_no_more_than_a_few_writes_run_at_once_and_a_stop_ends_them() -> None:
    writes, go = RunningWrites(str, Watch()), threading.Event()
    about = {"title": "a write", "by": "ann", "back": "/", "back_text": "Overview"}
    begun = [writes.start(lambda tell: int(go.wait(30)), **about) for _ in range(4)]
    with pytest.raises(Busy, match="4 writes"):
        writes.start(lambda tell: 1, **about)
    go.set()
    assert all(one.over.wait(30) for one in begun)
    assert writes.start(lambda tell: 1, **about).over.wait(30)
    writes.stop()
    with pytest.raises(Busy, match="stopping"):
        writes.start(lambda tell: 1, **about)


def test_the_log_says_who_has_ended_a_write_and_what_continues_it(caplog: Any) -> None:
    writes, progress = RunningWrites(str, Watch()), Progress(7, 2, 1, 0)
    about = {"title": "a write", "by": "ann", "back": "/", "back_text": "O", "resumes": True}
    told = threading.Event()

    def work(tell: Any) -> Any:
        while True:
            tell(progress)
            told.set()

    for end in ("viewer", "stop"):
        told.clear()
        write = writes.start(work, **about)
        assert told.wait(30)
        write.end() if end == "viewer" else writes.stop()
        assert write.over.wait(30)
    rest = ": 1 message changed by then; `--operation 7` continues it"
    assert [one.getMessage() for one in caplog.records] == [
        f"a write was ended by its viewer{rest}",
        f"a write was ended by the stop of the dashboard{rest}",
    ]


def test_a_write_that_fails_says_why_without_secrets() -> None:
    writes = RunningWrites(lambda error: str(error).replace("canary", "***"), Watch())

    def fails(tell: Any) -> int:
        raise ValueError("canary")

    about = {"title": "a write", "by": "ann", "back": "/", "back_text": "Overview"}
    write = writes.start(fails, **about)
    assert write.over.wait(30)
    assert write.error is not None
    assert "canary" not in write.error


def test_a_rerun_says_that_all_tries_come_again_and_done_items_do_not(
    sqlite_app: App, ann: Browser
) -> None:
    many_dead(sqlite_app, 1)
    told = _change(ann, "rerun", topic="t").main
    assert "each has all its tries again" in told
    assert "Items of a fan-out that are done stay done: only the others run." in told


def test_a_write_whose_thread_cannot_start_does_not_count_as_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writes = RunningWrites(str, Watch())
    about = {"title": "rerun", "by": "anna", "back": "/", "back_text": "Overview"}
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Busy, match="nothing was done"):
            writes.start(_nothing, **about)
    assert writes.running() == []
    assert writes.start(_nothing, **about).over.wait(10)


def _nothing(_: Any) -> int:
    return 0


# ---------------------------------------------------------------- acknowledge


def test_what_is_acknowledged_leaves_the_badge_and_what_needs_help(
    sqlite_app: App, ann: Browser
) -> None:
    first, second = put(sqlite_app, ("a", FAILED), ("b", FAILED))
    assert "2 messages will not be tried again" in ann.get("/").main
    page = ann.get(ann.get(f"/messages/{first}").link("Acknowledge"))
    done = ann.send(page, "/change/acknowledge", reason="INC-4711")
    assert "changed1" in done.main
    told = ann.get(f"/messages/{first}")
    assert "acknowledged by ann: INC-4711" in told.main
    assert "Acknowledge…" not in told.main
    assert "1 message will not be tried again" in ann.get("/").main
    found = ann.get("/messages?status=dead&acknowledged=no").links
    assert f"/messages/{second}" in found
    assert f"/messages/{first}" not in found
    group = ann.get("/failures").link("Acknowledge")
    ann.send(ann.get(group), "/change/acknowledge", reason="all of it")
    page = ann.get("/")
    assert "will not be tried again" not in page.main
    assert "Nothing has failed" in ann.get("/failures").main
    assert "dead messages" not in page.text
    ann.get("/messages?acknowledged=perhaps", 400)


# ---------------------------------------------------------------- edit


def test_an_edit_shows_what_would_change_and_then_does_it(sqlite_app: App, ann: Browser) -> None:
    (msg_id,) = put(sqlite_app, ("a", FAILED), payload='{"code": "USD", "n": [1, 2]}')
    path = ann.get(f"/messages/{msg_id}").link("Edit")
    page = ann.get(path)
    assert '"code": "USD"' in page.main
    told = ann.send(page, path, topic="u", payload='{"code": "EUR", "n": [1, 2]}')
    assert '- "code": "USD"' in told.main
    assert '+ "code": "EUR"' in told.main
    assert "- t + u" in told.main
    assert '- "n"' not in told.main
    assert sqlite_app.ops.show(msg_id).topic == "t"
    done = ann.send(told, path, reason="INC-4711")
    assert "changed1" in done.main
    info = sqlite_app.ops.show(msg_id)
    assert (info.topic, info.status, "EUR" in info.payload) == ("u", State.DEAD, True)
    told = ann.get(f"/messages/{msg_id}?payload=0").main
    assert "What edit 1 has changed" in told
    assert "EUR" not in told
    assert "EUR" in ann.get(f"/messages/{msg_id}").main
    assert "EUR" not in ann.get("/audit/1").main
    assert "EUR" in ann.get("/audit/1?payload=1").main


def test_an_edited_message_says_that_its_error_is_of_before(sqlite_app: App, ann: Browser) -> None:
    (msg_id,) = put(sqlite_app, ("a", FAILED), tries=1)
    assert "It is of before" not in ann.get(f"/messages/{msg_id}").main
    assert sqlite_app.ops.edit(msg_id, priority=3, actor="bob", reason="INC-4711") == 1
    page = ann.get(f"/messages/{msg_id}").main
    assert "It is of before the message was edited by bob" in page
    assert "INC-4711" in page
    assert "edited by bob; before: ValueError: no" in ann.get("/messages").main
    assert "; edited by bob" in ann.get("/lanes").main


def test_an_edit_of_what_has_changed_since_its_form_does_nothing(
    sqlite_app: App, ann: Browser
) -> None:
    (msg_id,) = put(sqlite_app, ("a", NEW), payload="1")
    path = f"/edit/{msg_id}"
    told = ann.send(ann.get(path), path, payload="2")
    assert sqlite_app.ops.edit(msg_id, priority=3, reason="other") == 1
    assert "changed since it was seen" in ann.send(told, path, reason="r").main
    assert sqlite_app.ops.show(msg_id).payload == "1"
    assert "there is nothing to change" in ann.send(ann.get(path), path).main
    Table(sqlite_app).edit(status=RUNNING)
    assert "is running" in ann.send(ann.get(path), path, payload="2").main


@pytest.mark.parametrize(
    "values",
    [
        {"payload": '{"amount": 12345678901234567.89, "note": "x"}'},
        {"payload": '{"amount": 12.50, "rate": 0.1, "n": 12345678901234567890, "z": -0}'},
        {"payload": None},
        {"payload": "no json"},
        {"payload": '{"a": 1, "a": 2}'},
        {"available_at": datetime(2030, 1, 2, 3, 4, 5, 678901, UTC), "priority": 3},
    ],
    ids=str,
)
def test_a_form_that_is_submitted_unchanged_changes_nothing(
    sqlite_app: App, ann: Browser, values: dict[str, Any]
) -> None:
    (msg_id,) = put(sqlite_app, ("a", NEW), **values)
    path, before = f"/edit/{msg_id}", Table(sqlite_app).rows("topic", "payload", "priority")
    page = ann.get(path)
    given = {name: text.replace("\n", "\r\n") for name, text in page.form(path).items()}
    assert "there is nothing to change" in ann.send(page, path, **given).main
    told = ann.send(page, path, **given | {"topic": "u"})
    assert "changed1" in ann.send(told, path, reason="r").main
    ((topic, *rest),) = Table(sqlite_app).rows("topic", "payload", "priority")
    assert (topic, tuple(rest)) == ("u", tuple(before[0][1:]))


def test_a_number_is_shown_and_edited_digit_for_digit(sqlite_app: App, ann: Browser) -> None:
    (msg_id,) = put(sqlite_app, ("a", NEW), payload='{"amount": 12345678901234567.89, "b": 1.10}')
    path = f"/edit/{msg_id}"
    assert '"amount": 12345678901234567.89,' in ann.get(f"/messages/{msg_id}").main
    page = ann.get(path)
    text = page.form(path)["payload"]
    assert '"amount": 12345678901234567.89,' in text
    told = ann.send(page, path, payload=text.replace("1.10", "1.20"))
    assert all(line in told.main for line in ('"amount": 12345678901234567.89,', '"b": 1.20'))
    assert "changed1" in ann.send(told, path, reason="r").main
    assert Table(sqlite_app).column("payload") == ['{"amount":12345678901234567.89,"b":1.20}']
    assert "12345678901234567.89" in ann.get("/audit/1?payload=1").main


def test_what_is_hidden_of_a_payload_is_not_written_over(sqlite_app: App, visit: Any) -> None:
    payload = '{"card": "HIDDEN-1", "n": 1}'
    (msg_id,) = put(sqlite_app, ("a", FAILED), payload=payload)
    ann, path = visit(sqlite_app, redact=["card"]), f"/edit/{msg_id}"
    page = ann.get(path)
    assert page.form(path)["payload"] == ""
    assert "parts of it are hidden" in page.main
    ann.send(page, path, 400, payload='{"card": "***", "n": 2}')
    told = ann.send(page, path, priority="2")
    ann.send(told, path, reason="r")
    info = sqlite_app.ops.show(msg_id)
    assert (info.payload, info.priority) == (payload, 2)
    told = ann.send(page, path, payload='{"card": "HIDDEN-2", "n": 2}')
    assert "HIDDEN-1" not in told.main
    ann.send(told, path, reason="r")
    assert "HIDDEN" not in ann.get(f"/messages/{msg_id}?payload=1").body.split("<h2>Audit")[1]


def test_a_form_of_an_edit_refuses(sqlite_app: App, ann: Browser, subtests: Any) -> None:
    (msg_id,) = put(sqlite_app, ("a", NEW), payload="1")
    path = f"/edit/{msg_id}"
    for given in (
        {"payload": "{"},
        {"payload": '{"a": NaN}'},
        {"payload": "x" * 20_001},
        {"priority": "-1"},
        {"priority": "x"},
        {"topic": "x" * 101, "payload": "2"},
        {"available_at": "tomorrow"},
        {"available_at": "2030-01-01T00:00"},
    ):
        with subtests.test(given=given):
            code = 200 if "topic" in given else 400
            told = ann.send(ann.get(path), path, code, **given)
            assert (
                "What would change" not in told.main
                or "at most" in told.main
                or "a topic is" in told.main
            )
            assert sqlite_app.ops.show(msg_id).payload == "1"


def test_a_message_of_an_empty_topic_keeps_it_in_an_edit(sqlite_app: App, ann: Browser) -> None:
    (msg_id,) = put(sqlite_app, ("a", NEW))
    with sqlite_app.engine.begin() as conn:
        conn.execute(sa.text("UPDATE msgworker_message SET topic = ''"))
    page = ann.get(f"/edit/{msg_id}")
    (topic,) = page.tree.all("input", name="topic")
    assert "required" not in topic.attrs
    told = ann.send(page, f"/edit/{msg_id}", priority="3")
    ann.send(told, f"/edit/{msg_id}", reason="INC-1")
    info = sqlite_app.ops.show(msg_id)
    assert info is not None
    assert (info.topic, info.priority) == ("", 3)
