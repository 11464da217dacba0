"""The JSON API on each database."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.store import audit, bounded
from msgworker.web.access import Role
from msgworker.web.api import ENDPOINTS, document, messages, operations
from tests.api.conftest import client_of
from tests.support.ops import DONE, FAILED, NEW, put
from tests.support.rows import edit, send
from tests.support.spans import PARENT
from tests.support.waiting import until
from tests.support.web import one_loop

OPENAPI = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def rows_of(client: Any, path: str, most: int = 50) -> list[Any]:
    """The rows of all pages, by the links."""
    found: list[Any] = []
    following = f"/api/v1{path}"
    for _ in range(most):
        answer = client.get(f"http://127.0.0.1:8080{following}")
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        following = answer.json()["next"]
        if following is None:
            return found
    raise AssertionError("the list does not end")


def test_lists_have_pages_and_links(app, client):
    ids = put(app, *((f"o{n}", FAILED if n % 2 else NEW) for n in range(9)))
    paths = "/messages?limit=2", "/messages?order=oldest&limit=4", "/messages?status=dead&limit=3"
    found = [[one["msg_id"] for one in rows_of(client, path)] for path in paths]
    assert found == [ids[::-1], ids, ids[7::-2]]
    assert all(one["payload"] is None for one in rows_of(client, "/messages"))
    (group,) = rows_of(client, "/failures?limit=1")
    assert (group["dead"], group["error"]) == (4, "ValueError: no")
    members = rows_of(client, f"/messages?fingerprint={group['fingerprint']}&limit=3")
    assert [one["msg_id"] for one in members] == ids[7::-2]
    assert len(rows_of(client, "/lanes?by=object&limit=2")) == 5
    assert len(rows_of(client, "/lanes")) == 5


@pytest.mark.long
def test_the_overview_and_the_other_reads_answer(app, client):
    send(app, "a", topic="t")
    app.ops.pause("t", reason="holiday")
    found = client.get("/overview").json()
    assert found["counts"] == {"new": {"count": 1, "more": False, "about": False, "at_most": False}}
    (topic,) = client.get("/topics").json()["items"]
    assert (topic["topic"], topic["paused"]["reason"]) == ("t", "holiday")
    for path in ("/instances", "/schedules", "/limits", "/locks", "/audit", "/failures"):
        assert client.get(path).status_code == 200, path
    assert client.get("/metrics/series?window=6h").json()["step_seconds"] == 300
    assert client.get("/openapi.json").json()["openapi"] == "3.1.0"


def test_an_empty_topic_or_object_is_chosen_by_its_name(app, client):
    ids = put(app, ("", FAILED), ("o", FAILED))
    ids += put(app, ("p", FAILED), topic="")
    for chosen, found in (({"object_id": ""}, ids[0]), ({"topic": ""}, ids[2])):
        (one,) = rows_of(client, f"/messages?{urlencode(chosen)}")
        assert one["msg_id"] == found
        body = {"filter": chosen, "dry_run": True, "reason": "r"}
        assert client.post("/acknowledge", json=body).json()["changed"] == 1


def test_every_list_has_pages(app, client):
    for number in range(5):
        app.ops.pause(f"t{number}", reason="holiday")
    whole = rows_of(client, "/topics")
    assert [one["topic"] for one in whole] == [f"t{number}" for number in range(5)]
    assert rows_of(client, "/topics?limit=2") == whole
    page = client.get("/topics?limit=2").json()
    assert (len(page["items"]), page["complete"]) == (2, True)
    app.ops.resume("t0")  # what is gone moves no other one over the end of a page
    after = client.get(page["next"].removeprefix("/api/v1")).json()["items"]
    assert [one["topic"] for one in after] == ["t2", "t3"]
    app.ops.resume("t2")
    assert client.get("/topics?after=x").status_code == client.get("/lanes?after=x").status_code
    for one in ENDPOINTS:
        if one.page:
            limit = one.query.model_json_schema()["properties"]["limit"]
            assert limit["maximum"] == 200, one.path


def test_a_payload_is_shown_only_on_request_and_without_what_is_hidden(app, client):
    (msg_id,) = send(app, "a", payload={"iban": "DE00", "n": 1})
    assert client.get(f"/messages/{msg_id}").json()["message"]["payload"] is None
    shown = client.get(f"/messages/{msg_id}?payload=1").json()
    assert json.loads(shown["message"]["payload"]) == {"iban": "***", "n": 1}
    assert shown["place"]["head"] == msg_id
    (behind,) = send(app, "a", payload="DE00")
    assert client.get(f"/messages/{behind}/explain").json()["behind"]["message"]["msg_id"] == msg_id
    for one in (msg_id, behind):
        assert "DE00" not in client.get(f"/messages/{one}/explain").text
    assert client.get(f"/messages/{msg_id}/attempts").json()["items"] == []
    assert client.get(f"/messages/{msg_id}/items?payload=1").json()["items"] == []
    (msg_id,) = send(app, "a", payload="x" * 10_000)
    shown = client.get(f"/messages/{msg_id}?payload=1").json()["message"]
    assert (shown["payload_cut"], "not shown" in shown["payload"]) == (True, True)
    (msg_id,) = send(app, "a", payload=[1] * 4_000)  # longer in lines
    shown = client.get(f"/messages/{msg_id}?payload=1").json()["message"]
    assert (shown["payload_cut"], shown["payload"][-1]) == (True, "…")


def test_a_message_says_its_trace_and_nothing_else_of_its_headers(app, client):
    (msg_id,) = send(app, "a")
    edit(app, msg_id, headers=json.dumps({"traceparent": PARENT, "baggage": "card=canary"}))
    shown = client.get(f"/messages/{msg_id}")
    assert shown.json()["message"]["trace_id"] == PARENT.split("-")[1]
    assert "canary" not in shown.text
    assert client.get("/messages").json()["items"][0]["trace_id"] is None


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/messages?limit=0", 422, "limit"),
        ("/messages?limit=201", 422, "limit"),
        ("/messages?limit=1.0", 422, "limit"),
        ("/messages?job=1.0", 422, "job"),
        ("/messages?job=1_0", 422, "job"),
        ("/messages?job=%201", 422, "job"),
        ("/messages?job=0", 422, "job"),
        ("/messages?limit=5&limit=6", 422, "limit"),
        ("/messages?colour=red", 422, "colour"),
        ("/messages?since=2026-01-01T00:00:00", 422, "since"),
        ("/messages?topic=%00", 422, "topic"),
        ("/messages?error=", 422, "error"),
        ("/messages?status=lost", 422, "status"),
        ("/messages?after=zz", 400, None),
        ("/messages?status=new&fingerprint=aa", 400, None),
        ("/audit?after=9223372036854775808", 422, "after"),
        ("/messages/9223372036854775808", 404, None),
        ("/messages/-9223372036854775808", 404, None),
        ("/messages/x", 404, None),
        ("/messages/99", 404, None),
        ("/operations/99", 404, None),
        ("/nothing", 404, None),
    ],
)
def test_a_wrong_value_is_a_problem_that_names_it(client, path, status, field):
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status
    assert told["detail"]
    assert field is None or [one["field"] for one in told["errors"]] == [field]


def test_a_wrong_body_is_a_problem_and_changes_nothing(app, client):
    (msg_id,) = put(app, ("a", FAILED))
    for body in ({"reason": 7}, {"what": 1}, {"dry_run": "yes"}, [], "x", {"reason": "x" * 1001}):
        answer = client.post(f"/messages/{msg_id}/rerun", json=body)
        assert answer.status_code == 422, (body, answer.text)
    for path in ("/rerun", "/skip", "/cancel"):
        answer = client.post(path, json={"filter": {}, "reason": "x"})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "filter")
    raw = {"content": b"{", "headers": {"content-type": "application/json"}}
    assert client.post(f"/messages/{msg_id}/rerun", **raw).status_code == 422
    raw["headers"] = {"content-type": "text/plain"}
    assert client.post(f"/messages/{msg_id}/rerun", **raw).status_code == 415
    assert client.post(f"/messages/{msg_id}/skip", json={}).status_code == 400  # needs a reason
    assert client.post("/messages/999/rerun").status_code == 404
    assert app.ops.audit() == []


def test_a_write_is_in_the_audit_with_who_and_from_where(app, client):
    ids = put(app, *((f"o{n}", FAILED) for n in range(4)), ("n", NEW))
    done = client.post(f"/messages/{ids[0]}/rerun", json={"reason": "back"}).json()
    assert (done["changed"], done["finished"]) == (1, True)
    body = {"filter": {"topic": "t", "status": "dead"}, "reason": "back"}
    would = client.post("/rerun", json=body | {"dry_run": True}).json()
    assert would["changed"] == 3
    wrong = client.post("/rerun", json=body | {"expected_count": 2})
    assert (wrong.status_code, wrong.json()["expected"], wrong.json()["found"]) == (409, 2, 3)
    assert client.post("/rerun", json=body | {"expected_count": 3}).json()["changed"] == 3
    assert client.post(f"/messages/{ids[4]}/skip", json={"reason": "x"}).json()["changed"] == 1
    assert client.post("/topics/a%2Fb/pause", json={}).json()["changed"] == 1
    assert client.post("/topics/a/b/resume").json()["changed"] == 1
    sent = client.post("/messages", json={"topic": "t", "payload": {"n": 1}, "object_id": "z"})
    assert client.get(f"/messages/{sent.json()['msg_id']}").json()["message"]["object_id"] == "z"
    entries = rows_of(client, "/audit?limit=2")
    kinds = ["send", "resume", "pause", "discard", "rerun", "rerun"]
    assert [one["kind"] for one in entries] == kinds
    assert {one["actor"] for one in entries} == {"anna-operator"}
    assert {one["source"] for one in entries} == {"api testclient (token)"}
    number = entries[-1]["op_id"]
    assert client.get(f"/operations/{number}").json()["changed"] == 1


def test_roles_decide_who_may_write(app, served):
    put(app, ("a", FAILED))
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace(":path", "").replace("{", "").replace("}", "")
        path = path.replace("msg_id", "1").replace("op_id", "1")
        below = [word for word in ("viewer", "operator") if Role.of(word) < endpoint.role]
        for word in below:
            answer = client_of(served, word).request(endpoint.method, path)
            assert answer.status_code == 403, (endpoint.name, word)
        assert client_of(served, "").request(endpoint.method, path).status_code == 401
        assert (endpoint.role > Role.VIEWER) == endpoint.write
    assert app.ops.audit() == []


def test_a_read_behind_a_write_shows_it(client, monkeypatch):
    monkeypatch.setattr("msgworker.web.site.SHARED_SECONDS", 60.0)
    with one_loop(client):
        assert rows_of(client, "/topics") == []
        client.post("/topics/t/pause", json={})
        assert [one["topic"] for one in rows_of(client, "/topics")] == ["t"]


def test_a_key_makes_a_repeated_write_tell_what_the_first_one_did(app, client, served):
    put(app, *((f"o{n}", FAILED) for n in range(3)))
    body = {"filter": {"status": "dead"}}
    key = {"idempotency-key": "k1"}
    first = client.post("/rerun", json=body, headers=key)
    again = client.post("/rerun", json=body, headers=key)
    assert first.json()["changed"] == again.json()["changed"] == 3
    assert first.json()["op_id"] == again.json()["op_id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = client.post("/rerun", json=body | {"reason": "x"}, headers=key)
    assert other.status_code == 422
    message = {"topic": "t", "payload": 1}
    key = {"idempotency-key": "k2"}
    sent = [client.post("/messages", json=message, headers=key).json() for _ in range(3)]
    assert len({one["msg_id"] for one in sent}) == 1
    mine = client_of(served, "admin").post("/messages", json=message, headers=key).json()
    assert mine["msg_id"] != sent[0]["msg_id"]  # a key is of one who asks
    for wrong in ("", "x" * 256, "a b", "\u00e9"):
        answer = client.post(
            "/rerun", json=body, headers={"idempotency-key": wrong.encode("latin-1")}
        )
        assert answer.status_code == 422


def test_a_send_that_is_cut_off_before_its_commit_can_be_repeated(app, client, monkeypatch, table):
    """The record of the key and the message are one transaction."""
    with monkeypatch.context() as patched:
        begin = audit.begin

        def cut(*given: Any, **facts: Any) -> None:
            begin(*given, **facts)
            raise RuntimeError("cut off")

        patched.setattr(audit, "begin", cut)
        key = {"idempotency-key": "k"}
        assert client.post("/messages", json={"topic": "t"}, headers=key).status_code == 500
    assert table.statuses == []
    assert client.post("/messages", json={"topic": "t"}, headers=key).status_code == 200
    assert client.post("/messages", json={"topic": "t"}, headers=key).status_code == 200
    assert table.statuses == [NEW]


def test_a_long_write_is_answered_with_its_number_and_goes_on(app, client, served, monkeypatch):
    put(app, *((f"o{n}", FAILED) for n in range(5)))
    monkeypatch.setattr(operations, "WAIT_SECONDS", 0.0)
    answer = client.post("/rerun", json={"filter": {"status": "dead"}, "rate": 4})
    assert (answer.status_code, answer.json()["finished"]) == (202, False)
    assert [one.resumes for one in served.site.writes.running()] == [True]
    number = f"/operations/{answer.json()['op_id']}"
    until(lambda: client.get(number).json()["finished_at"] is not None, "the write is over")
    assert client.get(number).json()["changed"] == 5


def test_of_many_the_api_counts_some_and_changes_those_alone(app, client, monkeypatch):
    ids = put(app, *((f"o{n}", NEW) for n in range(5)))
    monkeypatch.setattr(messages, "COUNTED", 3)
    body = {"filter": {"status": "new"}, "reason": "no use"}
    would = client.post("/skip", json=body | {"dry_run": True}).json()
    assert (would["changed"], would["complete"], would["up_to"]) == (3, False, ids[2])
    only = client.post("/skip", json=body | {"filter": {"up_to": ids[2]}})
    assert only.status_code == 422
    body["filter"]["up_to"] = would["up_to"]
    assert client.post("/skip", json=body | {"expected_count": 4}).status_code == 409
    done = client.post("/skip", json=body | {"expected_count": would["changed"]}).json()
    assert done["changed"] == 3
    assert [str(app.ops.show(i).status) for i in ids] == ["dead"] * 3 + ["new"] * 2


def test_a_write_that_does_not_begin_in_time_is_ended_and_does_nothing(
    app, served, client, monkeypatch
):
    ids = put(app, *((f"o{n}", FAILED) for n in range(3)))
    monkeypatch.setattr(operations, "BEGIN_SECONDS", 0.1)
    monkeypatch.setattr(operations, "WAIT_SECONDS", 0.0)
    real, go = bounded.ids_of_filter, threading.Event()

    def page(*args, **kwargs):
        assert go.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(bounded, "ids_of_filter", page)
    answer = client.post("/rerun", json={"filter": {"status": "dead"}, "expected_count": 3})
    assert answer.status_code == 503
    assert "ended" in answer.json()["detail"]
    (write,) = served.site.writes.running()
    go.set()
    assert write.over.wait(30)
    assert write.left
    assert app.ops.audit() == []
    assert [str(app.ops.show(i).status) for i in ids] == ["dead"] * 3


def test_a_payload_may_hold_what_looks_like_a_coded_nul(client):
    answer = client.post("/messages", json={"topic": "t", "payload": {"rate": "5%00"}})
    assert answer.status_code in (200, 201), answer.text


def test_errors_of_sending_are_told(client):
    for body, status in (
        ({"topic": "t", "delay": 1, "at": "2030-01-01T00:00:00Z"}, 400),
        ({"topic": "t", "delay": -1}, 422),
        ({"topic": "t", "priority": 40_000}, 422),
        ({"payload": 1}, 422),
    ):
        assert client.post("/messages", json=body).status_code == status, body
    keyed = {"topic": "t", "unique_key": "u", "on_duplicate": "raise"}
    first = client.post("/messages", json=keyed).json()
    taken = client.post("/messages", json=keyed)
    assert (taken.status_code, taken.json()["msg_id"]) == (409, first["msg_id"])


def test_odd_rows_are_answered_as_json(app: App, client: Any) -> None:
    (msg_id,) = put(app, ("\u2028\u202e<b>", DONE), last_error="x\u0007\x1b[2J")
    answer = client.get(f"/messages/{msg_id}")
    assert answer.json()["message"]["object_id"] == "\u2028\u202e<b>"
    assert answer.content.isascii()
    if app.engine.dialect.name == "sqlite":
        with app.engine.begin() as conn:
            conn.execute(sa.text("UPDATE msgworker_message SET topic = X'FF00', object_id = X'FE'"))
        assert client.get(f"/messages/{msg_id}").status_code == 200
        assert client.get("/topics").status_code == 200


def test_the_openapi_document_is_in_step():
    wanted = document.text(ENDPOINTS)
    assert OPENAPI.read_text() == wanted, (
        "run: python -m msgworker.web.api > docs/reference/openapi.json"
    )


def test_jobs_are_listed_read_sealed_and_cancelled(app, client):
    jobs = [app.job(f"job {n}", on_complete=("t", {"secret": n})) for n in range(3)]
    send(app, "a", "b", topic="t", job=jobs[0])
    assert [one["name"] for one in rows_of(client, "/jobs?limit=2")] == ["job 2", "job 1", "job 0"]
    assert client.get("/jobs?state=ended").json()["items"] == []
    one = client.get(f"/jobs/{jobs[0].job_id}").json()
    assert (one["state"], one["waiting"]["count"], one["payload"]) == ("open", 2, None)
    assert client.get("/jobs/99").status_code == client.get("/jobs/x").status_code == 404
    path = f"/jobs/{jobs[0].job_id}"
    assert client.post(f"{path}/seal", json={}).json()["changed"] == 1
    assert client.post("/messages", json={"topic": "t", "job": jobs[0].job_id}).status_code == 409
    assert client.post("/messages", json={"topic": "t", "job": jobs[1].job_id}).status_code == 200
    found = client.get(f"/messages?job={jobs[1].job_id}").json()["items"]
    assert [one["job_id"] for one in found] == [jobs[1].job_id]
    for verb, state in (("pause", "paused"), ("resume", "held")):
        assert client.post(f"{path}/{verb}", json={"dry_run": True}).json()["changed"] == 1
        assert client.post(f"{path}/{verb}", json={"reason": "month end"}).json()["changed"] == 1
        one = client.get(path).json()
        why = "month end" if verb == "pause" else None
        assert (one["state"], one["paused_reason"]) == (state, why)
    (hold,) = one["holds"]
    assert (hold["why"], hold["count"]["count"]) == ("no handler", 2)
    assert "no instance lives" in hold["text"]
    assert client.post("/jobs/99/pause", json={}).status_code == 404
    assert client.post(f"{path}/cancel", json={"dry_run": True}).json()["changed"] == 2
    assert client.post(f"{path}/cancel", json={"reason": "wrong"}).json()["changed"] == 2
    assert client.get(path).json()["state"] == "cancelled"
    app.add_handler("t", lambda msg: None)
    app.drain(linger=0)
    assert client.post(f"{path}/pause", json={}).status_code == 409
    assert client.post(f"{path}/cancel", json={"reason": "again"}).status_code == 409


def test_numbers_are_sent_and_edited_digit_for_digit(app, client):
    old, new = '{"a": 12345678901234567.89}', '{"a": 12345678901234567.88}'
    kind = {"content-type": "application/json"}
    body = f'{{"topic": "t", "payload": {old}, "delay": 1.5, "reason": "r"}}'
    msg_id = client.post("/messages", content=body, headers=kind).json()["msg_id"]
    assert app.ops.show(msg_id).payload == old.replace(" ", "")
    body = f'{{"payload": {new}, "reason": "r"}}'
    done = client.post(f"/messages/{msg_id}/edit?payload=1", content=body, headers=kind).json()
    assert "12345678901234567.89" in done["changes"][0]["old"]
    assert "12345678901234567.88" in done["changes"][0]["new"]
    assert app.ops.show(msg_id).payload == new.replace(" ", "")


def test_a_message_is_edited_as_it_was_seen(app, client):
    (msg_id,) = send(app, "a", topic="t", payload={"n": 1})
    path = f"/messages/{msg_id}/edit"
    would = client.post(path, json={"payload": {"n": 2}, "dry_run": True}).json()
    assert (would["changed"], would["dry_run"]) == (1, True)
    assert would["changes"] == [{"column": "payload", "old": None, "new": None}]
    given = {"payload": {"n": 2}, "topic": "u", "seen": would["seen"], "reason": "typo"}
    done = client.post(f"{path}?payload=1", json=given).json()
    assert done["changed"] == 1
    assert [one["column"] for one in done["changes"]] == ["topic", "payload"]
    assert done["changes"][1]["new"] == '{\n  "n": 2\n}'
    again = client.post(path, json=given).json()
    assert (again["changed"], again["skips"][0]["why"]) == (0, "changed since it was seen")
    told = client.get("/audit?payload=1").json()["items"][0]
    assert (told["kind"], told["changes"][0]["new"]) == ("edit", "u")
    assert client.get("/audit").json()["items"][0]["changes"][1]["old"] is None
    assert client.post(path, json={"available_at": None, "reason": "r"}).json()["changed"] == 0
    assert client.post("/messages/99/edit", json={"topic": "u"}).status_code == 404
    for wrong, code in (({"topic": ""}, 422), ({"priority": -1}, 422), ({"seen": "x"}, 422)):
        assert client.post(path, json=wrong | {"reason": "r"}).status_code == code
    assert client.post(path, json={"reason": "r"}).status_code == 400


def test_a_dead_message_is_acknowledged(app, client):
    known, other = put(app, ("a", FAILED), ("b", FAILED))
    assert client.get("/overview").json()["unacknowledged"]["count"] == 2
    path = f"/messages/{known}/acknowledge"
    assert client.post(path, json={}).status_code == 400
    assert client.post(path, json={"reason": "INC-4711"}).json()["changed"] == 1
    assert client.get("/overview").json()["unacknowledged"]["count"] == 1
    listed = client.get("/messages?acknowledged=0").json()["items"]
    assert [one["msg_id"] for one in listed] == [other]
    (one,) = client.get("/messages?acknowledged=1").json()["items"]
    assert one["acknowledged"].endswith(": INC-4711")
    given = {"filter": {"acknowledged": False}, "reason": "r", "expected_count": 1}
    assert client.post("/acknowledge", json=given).json()["changed"] == 1
    assert client.get("/failures").json()["items"] == []
