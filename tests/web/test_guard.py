"""What every request has to pass."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect

from msgworker import App
from msgworker.errors import ConfigError
from msgworker.web import access, application, guard
from tests.support.waiting import until
from tests.support.web import HERE, TOKEN, Browser, Page, browse, dashboard_with

PATHS = ("/", "/system", "/healthz", "/readyz", "/nothing", "/static/page.css", "/api/v1/nothing")


def test_every_answer_of_the_dashboard_has_the_headers_that_confine_it(
    browser: Browser, subtests: Any
) -> None:
    for path in PATHS:
        with subtests.test(path=path):
            headers = browser.get(path).headers
            policy = dict(
                part.split(" ", 1) for part in headers["content-security-policy"].split("; ")
            )
            assert policy["default-src"] == "'none'"
            assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            for name in ("style-src", "script-src", "form-action", "connect-src", "img-src"):
                assert policy[name] == "'self'"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
            assert not [name for name in headers if name.startswith("access-control-")]


def test_refusals_and_errors_have_the_headers_too(sqlite_app: App) -> None:
    found = browse(sqlite_app)
    sqlite_app.engine.dispose()
    odd = found.get("/", headers={"host": "evil.example"})
    assert (odd.status_code, odd.headers["x-content-type-options"]) == (421, "nosniff")


def test_a_request_to_another_name_is_refused_also_a_look(browser: Browser, subtests: Any) -> None:
    for host in (
        "evil.example",
        "evil.example:8080",
        "127.0.0.1:80",
        "127.0.0.1",
        "localhost:8081",
        "a@localhost:8080",
        "",
    ):
        for path in ("/", "/login", "/static/page.css"):
            with subtests.test(host=host, path=path):
                assert browser.get(path, headers={"host": host}).status_code == 421


def test_a_name_that_was_allowed_is_answered_with_its_port_only(sqlite_app: App) -> None:
    found = browse(sqlite_app, allowed_hosts=["ops.example.com:8443"])
    assert found.get("/", headers={"host": "OPS.example.com:8443"}).status_code == 200
    assert found.get("/", headers={"host": "ops.example.com"}).status_code == 421
    assert found.get("/", headers={"host": "ops.example.com.evil:8443"}).status_code == 421


def test_an_allowed_host_that_is_no_name_is_refused(subtests: Any) -> None:
    for name in ("", "*", "*.example.com", "http://a", "a b", "a/b", "a@b", "a:99999", "a\udcff"):
        with subtests.test(name=name), pytest.raises(ConfigError, match="NAME"):
            access.checked_host(name)


@pytest.mark.parametrize("given", [{"label": "\udcff"}, {"label": None}, {"root_path": "/\udcff"}])
def test_a_text_of_the_pages_that_is_not_utf8_is_refused(sqlite_app: App, given: Any) -> None:
    with pytest.raises(ConfigError, match="must be a text in UTF-8"):
        sqlite_app.web(**given)


def test_forwarded_headers_count_from_a_trusted_proxy_only(sqlite_app: App) -> None:
    sent = {
        "host": "127.0.0.1:8080",
        "x-forwarded-host": "ops.example.com",
        "x-forwarded-proto": "https",
    }
    options = {"auth": lambda r: r.url.scheme, "allowed_hosts": ["ops.example.com"]}
    trusting = sqlite_app.web(trusted_proxies=["10.0.0.0/8"], **options)
    near = Browser(trusting, peer="10.1.2.3").get("/", headers=sent)
    far = Browser(trusting, peer="192.0.2.1").get("/", headers=sent)
    assert "https, viewer" in near.text
    assert "; Secure" in near.headers["set-cookie"]
    assert "http, viewer" in far.text
    evil = {**sent, "x-forwarded-host": "evil.example"}
    assert Browser(trusting, peer="10.1.2.3").get("/", headers=evil).status_code == 421
    assert Browser(trusting, peer="192.0.2.1").get("/", headers=evil).status_code == 200


def test_the_client_behind_a_trusted_proxy_is_who_asks_and_its_cookie_is_for_tls(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    served = dashboard_with(sqlite_app, actions=True, trusted_proxies=["10.0.0.0/8"])
    asked = {"x-forwarded-for": "6.6.6.6, 203.0.113.9, 10.0.0.7", "x-forwarded-proto": "https"}
    near = Browser(served, base_url="https://127.0.0.1:8080", peer="10.1.2.3")
    near.headers.update(asked)
    assert near.submit("/login", {"token": "wrong"}, page="/login").status_code == 401
    assert "from 203.0.113.9" in caplog.text
    assert near.log_in().status_code == 303
    reason = {"name": "t", "reason": "a reason"}
    assert near.submit("/act/pause-topic", reason).status_code == 303
    until(lambda: len(sqlite_app.ops.audit()) == 1, "it is done")
    assert sqlite_app.ops.audit()[0].source == "web, session, 203.0.113.9"
    far = Browser(served, peer="192.0.2.1")
    far.headers["x-forwarded-for"] = asked["x-forwarded-for"]
    assert far.submit("/login", {"token": "wrong"}, page="/login").status_code == 401
    assert "from 192.0.2.1" in caplog.text


def test_of_forwarded_addresses_the_last_that_is_no_proxy_counts(subtests: Any) -> None:
    for told, client in (
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("evil, 203.0.113.9, 10.1.1.1", "203.0.113.9"),
        ("203.0.113.9, unknown", "10.1.2.3"),
        ("10.0.0.9", "10.1.2.3"),
        ("", "10.1.2.3"),
    ):
        with subtests.test(told=told, client=client):
            headers = [(b"x-forwarded-for", told.encode())]
            request = HTTPConnection(
                {"type": "http", "headers": headers, "client": ("10.1.2.3", 1), "state": {}}
            )
            proxies = access.networks_of(["10.0.0.0/8"])
            request.state.client = access.forwarded_for(proxies, request)
            assert access.client_of(request) == client


def test_a_cookie_is_for_tls_where_the_page_was_whatever_the_proxy_tells(sqlite_app: App) -> None:
    found = Browser(dashboard_with(sqlite_app))
    headers = {"origin": "https://127.0.0.1:8080"}
    fields = {"csrf": found.csrf("/login"), "token": TOKEN}
    answer = found.post("/login", data=fields, headers=headers)
    assert (answer.status_code, "; Secure" in answer.headers["set-cookie"]) == (303, True)
    plain = Browser(dashboard_with(sqlite_app)).log_in()
    assert (plain.status_code, "; Secure" in plain.headers["set-cookie"]) == (303, False)


def test_probes_and_programs_with_a_token_need_no_name(sqlite_app: App) -> None:
    asking = Browser(dashboard_with(sqlite_app, actions=True))
    other = {"host": "10.42.0.17:8080"}
    token = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/healthz", "/readyz"):
        assert asking.get(path, headers=other).status_code == 200
    for path in ("/metrics", "/api/v1/messages"):
        assert asking.get(path, headers=other | token).status_code == 200
    assert asking.get("/api/v1/messages", headers=other).status_code == 421
    assert asking.post("/api/v1/topics/t/pause", headers=other | token).status_code == 421
    open_to_all = browse(sqlite_app)  # whose peer is its proof, which any page of a browser has
    assert open_to_all.get("/api/v1/messages", headers=other | token).status_code == 421


def test_a_scrape_names_an_address_and_a_page_of_a_browser_has_a_name(
    sqlite_app: App, subtests: Any
) -> None:
    known, unknown = browse(sqlite_app), Browser(dashboard_with(sqlite_app))
    for host, code in (
        ("10.42.0.17:8080", 200),
        ("10.42.0.17", 200),
        ("[fd00::17]:8080", 200),
        ("10.42.0.17.evil.example:8080", 421),
        ("evil.example", 421),
        ("10.42.0.17@evil.example", 421),
        ("", 421),
        ("[", 421),
    ):
        with subtests.test(host=host, code=code):
            assert known.get("/metrics", headers={"host": host}).status_code == code
            assert known.get("/", headers={"host": host}).status_code == 421
            asked = unknown.get("/metrics", headers={"host": host}).status_code
            assert asked == (303 if code == 200 else 421)  # to the log-in


def test_a_body_is_read_up_to_its_limit_only(browser: Browser) -> None:
    over = b"x" * (guard.MOST_BODY + 1)
    assert browser.post("/theme", content=over).status_code == 413
    parts = iter([over[:40_000], over[:40_000]])  # without a content-length
    assert browser.post("/theme", content=parts).status_code == 413
    assert browser.post("/theme", content=b"x", headers={"content-length": "-1"}).status_code == 413


# ---------------------------------------------------------------- writes


def test_a_form_of_ours_is_taken(browser: Browser) -> None:
    found = browser.submit("/theme", {"theme": "dark", "next": "/system"})
    assert (found.status_code, found.headers["location"]) == (303, "/system")
    assert 'data-theme="dark"' in browser.get("/").text


def test_a_write_from_another_site_is_refused_although_it_has_the_token(
    browser: Browser, subtests: Any
) -> None:
    for headers in (
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:8081"},
        {"origin": "http://127.0.0.1:8080.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "origin": HERE},
    ):
        with subtests.test(headers=headers):
            data = {"csrf": browser.csrf(), "theme": "dark"}
            assert browser.post("/theme", data=data, headers=headers).status_code == 403


def test_over_tls_a_write_from_a_page_without_is_refused(sqlite_app: App) -> None:
    browser = Browser(sqlite_app.web(), base_url=HERE.replace("http:", "https:"))
    for origin, status in ((HERE, 403), (HERE.replace("http:", "https:"), 303)):
        data = {"csrf": browser.csrf(), "theme": "dark"}
        assert browser.post("/theme", data=data, headers={"origin": origin}).status_code == status


def test_a_write_without_the_token_of_its_session_is_refused(
    browser: Browser, subtests: Any
) -> None:
    for token in (None, "", "0" * 64, "ü"):
        with subtests.test(token=token):
            browser.get("/")
            data = {"theme": "dark"} | ({} if token is None else {"csrf": token})
            assert browser.post("/theme", data=data, headers={"origin": HERE}).status_code == 403


def test_the_token_of_another_session_is_refused(browser: Browser, sqlite_app: App) -> None:
    other = Browser(browser.app)  # the same dashboard
    data = {"csrf": other.csrf(), "theme": "dark"}
    assert other.post("/theme", data=data, headers={"origin": HERE}).status_code == 303
    browser.get("/")
    assert browser.post("/theme", data=data, headers={"origin": HERE}).status_code == 403


def test_no_other_method_comes_past_the_guard(browser: Browser, subtests: Any) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "X"):
        with subtests.test(method=method):
            assert browser.request(method, "/theme").status_code == 403


def test_a_write_with_a_bearer_token_needs_no_form(sqlite_app: App) -> None:
    dashboard = dashboard_with(sqlite_app, actions=True)
    found = Browser(dashboard).post(
        "/theme", data={"theme": "dark"}, headers={"authorization": f"Bearer {TOKEN}"}
    )
    assert found.status_code == 303


def _verifying(request: Any) -> str | None:
    given = request.headers.get("authorization"), request.headers.get("cookie")
    return "crm" if "Bearer of-the-program" in given or "of=the-program" in given else None


def _write(client: Browser, path: str = "/api/v1/topics/t/pause", **headers: str) -> Any:
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    return client.post(path, headers=sent)


def test_a_program_whose_token_auth_or_a_proxy_verifies_writes_by_the_api(sqlite_app: App) -> None:
    token = {"authorization": "Bearer of-the-program"}
    named = access.Proxied("x-user", access.networks_of(["127.0.0.1"]))
    for topic, auth in (("a", _verifying), ("b", named)):
        served = application.dashboard(sqlite_app, auth=auth, role="admin", actions=True)
        path = f"/api/v1/topics/{topic}/pause"
        assert _write(Browser(served), path, **token, x_user="crm").status_code == 200
    assert [one.actor for one in sqlite_app.ops.audit()] == ["crm", "crm"]


def test_a_token_that_a_proxy_adds_to_what_browsers_send_is_no_form_token(
    sqlite_app: App, subtests: Any
) -> None:
    token = {"authorization": "Bearer of-the-program", "x_user": "crm"}
    named = access.Proxied("x-user", access.networks_of(["127.0.0.1"]))
    for auth in (_verifying, named):
        client = Browser(application.dashboard(sqlite_app, auth=auth, role="admin", actions=True))
        for page in (
            *({"origin": one} for one in (HERE, "null", "http://evil.example")),
            *({"sec_fetch_site": one} for one in ("cross-site", "same-origin", "none")),
        ):
            with subtests.test(auth=auth, page=page):
                assert _write(client, **token, **page).status_code == 403
        assert _write(client, "/theme", **token).status_code == 403
    assert sqlite_app.ops.audit() == []


def test_a_program_without_a_token_is_told_to_send_one(sqlite_app: App, subtests: Any) -> None:
    by_auth = browse(sqlite_app, auth=_verifying, role="admin", actions=True)
    with_session = Browser(dashboard_with(sqlite_app, actions=True))
    with_session.log_in()
    junk = {"authorization": "Bearer junk"}
    for name, client, headers in (
        ("the cookie of a browser", by_auth, {"cookie": "of=the-program"}),
        ("this machine", browse(sqlite_app, actions=True), {}),
        ("this machine, any token", browse(sqlite_app, actions=True), junk),
        ("a session, a wrong token", with_session, junk),
    ):
        with subtests.test(name):
            found = _write(client, **headers)
            assert (found.status_code, found.json()["detail"]) == (403, guard.WITHOUT_TOKEN)


def test_one_with_basic_or_a_session_needs_it(sqlite_app: App) -> None:
    """A browser sends these by itself."""
    dashboard = dashboard_with(sqlite_app, actions=True)
    client = Browser(dashboard)
    found = client.post("/theme", data={"theme": "dark"}, auth=("token", TOKEN))
    assert found.status_code == 403
    assert client.log_in().status_code == 303
    assert client.post("/theme", data={"theme": "dark"}).status_code == 403


def test_after_a_form_the_browser_stays_here(browser: Browser, subtests: Any) -> None:
    for place in ("//evil.example", "/\\evil.example", "https://evil.example", "x", ""):
        with subtests.test(place=place):
            found = browser.submit("/theme", {"theme": "dark", "next": place})
            assert found.headers["location"] == "/"


# ---------------------------------------------------------------- answers


def test_a_refusal_is_a_page_for_people_and_a_problem_for_programs(browser: Browser) -> None:
    page = Page(browser.get("/nothing").text)
    assert "404 Not Found" in page.text
    found = browser.get("/nothing", headers={"accept": "application/json"})
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["status"] == 404


@pytest.mark.parametrize("path", ["/", "/api/v1/overview"])
def test_an_error_of_ours_is_a_page_or_a_problem_with_all_headers(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch, path: str, caplog: Any
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("hunter2\nin a second line")

    monkeypatch.setattr("msgworker.ops.Ops.overview", broken)
    found = browse(sqlite_app).get(path)
    assert found.status_code == 500
    assert {name: found.headers[name] for name in guard.HEADERS} == guard.HEADERS
    assert guard.FAILED in found.text
    assert "hunter2" not in found.text
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert f"GET {path} failed" in record.getMessage()
    wanted = "text/html; charset=utf-8" if path == "/" else "application/problem+json"
    assert found.headers["content-type"] == wanted


def test_each_write_is_one_line_of_the_log_with_who_and_without_its_query(
    browser: Browser, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "msgworker.web")
    browser.submit("/theme?secret=hunter2", {"theme": "dark"})
    lines = [r.getMessage() for r in caplog.records if "POST" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("POST /theme 303 ")
    assert lines[0].endswith("by local (admin, local)")
    assert "hunter2" not in caplog.text


def test_a_path_fakes_no_line_of_the_log(browser: Browser, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, "msgworker.web")
    browser.get("/a%0aWARNING%20faked%1b[31m%e2%80%a8b")
    text = [r.getMessage() for r in caplog.records if r.name == "msgworker.web"][-1]
    assert text.isprintable()
    assert json.dumps(text)


def test_a_value_with_nul_is_refused_before_the_database_sees_it(
    browser: Browser, subtests: Any
) -> None:
    for url in (
        "/messages?topic=a%00",
        "/audit?actor=%00",
        "/act/release?name=%00",
        "/messages/1%00",
    ):
        with subtests.test(url=url):
            found = browser.get(url)
            assert (found.status_code, "NUL" in found.text) == (400, True)


def test_a_form_with_nul_is_refused(browser: Browser) -> None:
    found = browser.submit("/act/pause-topic", {"name": "a\0", "reason": "because"})
    assert (found.status_code, "NUL" in found.text) == (400, True)


def test_a_client_that_goes_away_in_a_body_is_no_error(sqlite_app: App, caplog: Any) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/login",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8080"), (b"content-length", b"9")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
        "scheme": "http",
    }
    with caplog.at_level(logging.WARNING):
        asyncio.run(sqlite_app.web()(scope, receive, send))
    assert (sent, caplog.records) == ([], [])


@pytest.mark.parametrize("path", ["/", "/static/page.css"])
def test_a_websocket_is_closed(browser: Browser, path: str) -> None:
    with pytest.raises(WebSocketDisconnect) as found, browser.websocket_connect(path):
        pass
    assert found.value.code == 1008
