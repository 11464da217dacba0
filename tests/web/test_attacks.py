"""What an attacker tries at the dashboard, each found once by trying."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, __version__
from msgworker.doctor import structure
from msgworker.web import application, shown
from msgworker.web.access import Role
from msgworker.web.api import ENDPOINTS
from msgworker.web.shown import Redaction
from msgworker.web.writes import ON_THINGS
from tests.support.ops import FAILED, put
from tests.support.rows import send
from tests.support.web import HERE, SESSION, TOKEN, Browser, Page, browse, dashboard_with

CARD = "4111canary"
MOST_ID = 2**63 - 1


def asked(dashboard: Any, path: str, method: str = "GET") -> Any:
    """The answer to a target of a request that no client sends."""

    async def odd(scope: Any, receive: Any, send: Any) -> None:
        raw = path.encode()
        await dashboard({**scope, "path": path, "raw_path": raw}, receive, send)

    return Browser(odd).request(method, "/")


def test_a_link_to_another_host_is_a_fault_of_a_page() -> None:
    page = Page('<a href="//evil.example">a</a><a href="/jobs">b</a><a href="#top">c</a>')
    assert page.faults == ["<a href='//evil.example'>"]


def test_a_target_that_is_no_path_is_refused(sqlite_app: App, subtests: Any) -> None:
    """As of OPTIONS * and of a client that takes us for its proxy."""
    for root in ("", "/queue"):
        dashboard = sqlite_app.web(root_path=root)
        for target in ("*", "http://evil.example/", "evil.example:443", ""):
            with subtests.test(target=target, root=root):
                found = asked(dashboard, target)
                assert found.status_code == (200 if target == "" else 404)
                assert found.headers["x-content-type-options"] == "nosniff"
                assert asked(dashboard, target, "OPTIONS").status_code == 403


def test_no_answer_names_the_host_or_the_scheme(sqlite_app: App, subtests: Any) -> None:
    """Behind a proxy with TLS both are others than those that we see."""
    client = browse(sqlite_app, root_path="/queue")
    for path in ("/system/", "/static", "/api/v1/messages/", "/healthz/"):
        with subtests.test(path=path):
            found = client.get(f"/queue{path}")
            assert (found.status_code, found.headers.get("location")) == (404, None)
    assert client.get("/queue").status_code == 200


def test_who_is_not_admitted_learns_no_place_and_no_version(sqlite_app: App, subtests: Any) -> None:
    """A page of another site whose name was pointed at us reads our refusals."""
    dashboards = dashboard_with(sqlite_app, label="CANARY"), sqlite_app.web(label="CANARY")
    for headers in ({}, {"host": "evil.example"}, {"x-forwarded-for": "10.0.0.7"}):
        for path in ("/login", "/system", "/healthz", "/nothing", "/%00"):
            with subtests.test(headers=headers, path=path):
                for dashboard in dashboards:
                    client = Browser(dashboard, peer="10.0.0.7")
                    found = client.get(path, headers=headers)
                    for told in ("CANARY", "msgworker_message", "sqlite", __version__):
                        assert told not in found.text + str(found.headers), told


def test_a_number_that_no_database_has_is_refused(sqlite_app: App, subtests: Any) -> None:
    client = browse(sqlite_app)
    for path in ("/audit/{}", "/messages/{}", "/audit?after={}", "/writes/x?op={}"):
        for number in (MOST_ID, MOST_ID + 1, -MOST_ID - 1, -MOST_ID - 2, 10**400):
            with subtests.test(path=path, number=number):
                found = client.get(path.format(number))
                assert found.status_code in (200, 400, 404), found.text


def test_a_cursor_of_an_attacker_is_refused(app: App, visit: Any, subtests: Any) -> None:
    put(app, ("a", FAILED))
    client = visit(app).client
    for path in ("/lanes?by=object", "/failures", "/messages?status=dead"):
        for place in (
            '["\\u0000"]',
            '["\\ud800"]',
            '[1, "\\u0000"]',
            '[1, "\\udfff"]',
            "[1e999, 1]",
            '[9223372036854775808, "a"]',
            "[0, [1e999]]",
            '[0, ["\\u0000", 1]]',
            "[" * 1400,
        ):
            with subtests.test(path=path, place=place):
                text = base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")
                for root in ("", "/api/v1"):
                    asked = f"{root}{path}{'&' if '?' in path else '?'}after={text}"
                    found = client.get(asked)
                    assert found.status_code in (200, 400, 422), (asked, found.text)


# ---------------------------------------------------------------- payloads


def test_what_is_hidden_is_hidden_in_texts_that_are_json_too(subtests: Any) -> None:
    for payload in (
        {"customer": json.dumps({"card": CARD})},
        {"customer": f" {json.dumps([{'customer': {'card': CARD}}])}"},
        json.dumps({"customer": {"card": CARD}}),
        [json.dumps({"customer": json.dumps({"card": CARD})})],
    ):
        with subtests.test(payload=payload):
            hiding = Redaction.of(["**.customer.card", "customer.card"])
            text = shown.payload(json.dumps(payload), hiding)
            assert CARD not in text
            assert "customer" in text
            assert CARD in shown.payload(json.dumps(payload), Redaction.of(["other"]))


def test_a_text_that_is_no_json_stays_as_it_is_unless_it_begins_as_one() -> None:
    payload = {"note": "not {json", "list": "[1,  2]", "said": '"no", he said'}
    assert json.loads(shown.payload(payload, Redaction.of(["**.card"]))) == payload
    found = json.dumps({"card": CARD})
    for text in (f"{found}\n{found}", f"\ufeff{found}", f"{found},", json.dumps(found)):
        assert CARD not in shown.payload({"note": text}, Redaction.of(["**.card"]))


@pytest.mark.parametrize("depth", [300, 900, 4900])
@pytest.mark.parametrize("redact", [(), ("**.card",)])
def test_a_payload_that_is_nested_deeply_breaks_no_page(
    sqlite_app: App, depth: int, redact: Any
) -> None:
    (msg_id,) = send(sqlite_app, "a")
    text = '{"card": "' + CARD + '", "a": ' + "[" * depth + "]" * depth + "}"
    with sqlite_app.engine.begin() as conn:
        conn.execute(sa.text("UPDATE msgworker_message SET payload = :p"), {"p": text})
    client = browse(sqlite_app, redact=redact)
    found = client.get(f"/messages/{msg_id}?payload=1")
    told = client.get(f"/api/v1/messages/{msg_id}?payload=1")
    assert (found.status_code, told.status_code) == (200, 200)
    if redact:
        assert CARD not in found.text + told.text


def test_a_payload_of_odd_bytes_is_shown_on_request_only(sqlite_app: App) -> None:
    (msg_id,) = send(sqlite_app, "a")
    raw = f'{{"card": "{CARD}", "x": "'.encode() + b'\xff"}'
    with sqlite_app.engine.begin() as conn:
        conn.execute(
            sa.text(f"UPDATE msgworker_message SET payload = CAST(X'{raw.hex()}' AS TEXT)")
        )
    client = browse(sqlite_app)
    for path in (f"/messages/{msg_id}", f"/api/v1/messages/{msg_id}", "/messages"):
        found = client.get(path)
        assert CARD not in found.text, path
    assert "payload holds a text, which is not UTF-8" in client.get(f"/messages/{msg_id}").text
    hiding = browse(sqlite_app, redact=["card"])
    assert CARD not in hiding.get(f"/messages/{msg_id}?payload=1").text


# ---------------------------------------------------------------- secrets


def test_what_doctor_says_is_shown_without_secrets(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold words of the driver."""
    text = "cannot reach https://bob:hunter2canary@crm/x"
    found = structure.needed("server", text, f"SELECT '{text}'")
    monkeypatch.setattr("msgworker.ops.Ops.doctor", lambda _: [found])
    dashboard = application.dashboard(sqlite_app, values=[("locks", text, "flag")])
    page = Browser(dashboard).get("/system").text
    assert page.count("cannot reach https://bob:***@crm/x") == 3
    assert "hunter2canary" not in page


# ---------------------------------------------------------------- roles

SAME = {
    "pause-topic": "pause_topic",
    "resume-topic": "resume_topic",
    "remove-limit": "delete_limit",
    "release": "release_instance",
    "pause-job": "pause_job",
    "resume-job": "resume_job",
    "seal-job": "seal_job",
    "cancel-job": "cancel_job",
    "pause-schedule": "pause_schedule",
    "resume-schedule": "resume_schedule",
    "run-schedule": "run_schedule_now",
    "delete-schedule": "delete_schedule",
    "release-lock": "release_lock",
    "release-lock-elsewhere": "release_lock",
}
"""Writes by a form, and by the API."""


def test_a_write_needs_the_same_role_by_a_form_and_by_the_api() -> None:
    by_api = {one.name: one.role for one in ENDPOINTS if one.write}
    assert {kind: by_api[name] for kind, name in SAME.items()} == {
        kind: act.role for kind, act in ON_THINGS.items()
    }
    assert min(by_api.values()) == Role.OPERATOR


def test_a_key_of_another_person_is_another_key(sqlite_app: App) -> None:
    """Who replays it neither stops that person's write nor sees its answer."""
    dashboard = dashboard_with(
        sqlite_app, f"ann operator {TOKEN}", f"bob operator {TOKEN}-b", actions=True
    )
    answers = []
    for token in (TOKEN, TOKEN, f"{TOKEN}-b"):
        headers = {"authorization": f"Bearer {token}", "idempotency-key": "INC-1"}
        body = {"topic": "t", "reason": "once"}
        answers.append(Browser(dashboard).post("/api/v1/messages", json=body, headers=headers))
    first, again, other = (one.json()["msg_id"] for one in answers)
    assert (first, other) == (again, first + 1)
    assert ["idempotency-replayed" in one.headers for one in answers] == [False, True, False]


def test_a_body_that_two_programs_read_differently_is_refused(
    sqlite_app: App, subtests: Any
) -> None:
    """A filter in front may take the first of two keys, and we the last."""
    (found,) = put(sqlite_app, ("a", FAILED))
    client = Browser(dashboard_with(sqlite_app, actions=True))
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    url = f"/api/v1/messages/{found}/rerun"
    for body in (
        '{"dry_run": true, "dry_run": false}',
        '{"reason": NaN}',
        "[" * 60_000,
        "{",
        '"\\ud800"',
        "\xff",
    ):
        with subtests.test(body=body):
            told = client.post(url, content=body.encode("latin-1"), headers=headers)
            assert (told.status_code, told.json()["errors"][0]["in"]) == (422, "body")
            assert sqlite_app.ops.audit() == []


@pytest.mark.parametrize("part", ["%", "_", "\\", "100%", "a_b", "[a]", "\\%"])
def test_a_part_of_an_error_is_no_pattern(app: App, visit: Any, part: str) -> None:
    (found,) = put(app, ("a", FAILED), last_error=f"x {part} y")
    put(app, ("b", FAILED), last_error="100 aXb %%"[:7])
    client = visit(app).client
    told = client.get("/api/v1/messages", params={"error": part}).json()
    assert [one["msg_id"] for one in told["items"]] == [found]


def test_a_cookie_that_was_planted_is_no_session_after_the_log_in(sqlite_app: App) -> None:
    dashboard = dashboard_with(sqlite_app)
    attacker, victim = Browser(dashboard), Browser(dashboard)
    attacker.get("/login")
    planted = {SESSION: attacker.cookies[SESSION]}
    token = attacker.csrf("/login")
    victim.cookies.update(planted)
    assert victim.log_in().status_code == 303
    attacker.cookies.update(planted)
    assert attacker.get("/").headers["location"] == "/login"
    sent = {"csrf": token, "theme": "dark"}
    assert victim.post("/theme", data=sent, headers={"origin": HERE}).status_code == 403


def test_a_name_that_no_filter_takes_is_shown_cut_and_is_no_link(
    sqlite_app: App, subtests: Any
) -> None:
    """One that is not UTF-8, which SQLite takes of any program, and one of a megabyte."""
    with sqlite_app.engine.begin() as conn:
        row = "INSERT INTO msgworker_message (topic, object_id, status) VALUES "
        conn.execute(sa.text(f"{row} (CAST(x'4dfc6c6c' AS TEXT), CAST(x'4dfc' AS TEXT), 0)"))
        conn.execute(sa.text(f"{row} (:name, :name, 0)"), {"name": "n" * 1_000_000})
        conn.execute(sa.text(f"{row} (CAST(x'4dfc6c6c' AS TEXT), CAST(x'4dfc' AS TEXT), 0)"))
    for path in ("/", "/topics", "/messages", "/messages/1", "/lanes", "/lanes?by=object"):
        with subtests.test(path=path):
            found = browse(sqlite_app).get(path)
            assert found.status_code == 200
            assert len(found.content) < 100_000
            page = Page(found.text)
            assert page.faults == []
            assert [one for one in page.links() if "M%" in one or "nnn" in one] == []


def test_pages_of_many_tries_instances_and_schedules_are_bounded(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msgworker.web.pages.instances.ROWS", 2)
    for number in range(4):
        sqlite_app.every("24h", topic="t", name=f"s{number}")
    assert "2 further schedules are not shown" in browse(sqlite_app).get("/schedules").text
    with sqlite_app.engine.begin() as conn:
        for number in range(4):
            conn.execute(
                sa.text(
                    "INSERT INTO msgworker_message (topic, object_id, status, claimed_by) "
                    f"VALUES ('t', 'o{number}', 1, 'gone-{number}')"
                )
            )
    assert "2 further instances are not shown" in browse(sqlite_app).get("/instances").text
