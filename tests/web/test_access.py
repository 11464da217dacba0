"""Who may see the dashboard, and who may act."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from msgworker import App
from msgworker.errors import ConfigError
from msgworker.web import access, serving
from msgworker.web import access as tokens
from msgworker.web.access import Role, Sessions, Viewer, entry
from tests.support.web import HERE, TOKEN, Browser, Page, browse, dashboard_with

OTHER = "another-token-of-the-tests"


def test_without_authentication_only_this_machine_is_admitted(sqlite_app: App) -> None:
    dashboard = sqlite_app.web()
    assert Browser(dashboard).get("/").status_code == 200
    for peer in ("10.0.0.7", "192.0.2.1", "::ffff:192.0.2.1", "testclient", ""):
        assert Browser(dashboard, peer=peer).get("/").status_code == 403
    assert Browser(dashboard, peer="::ffff:127.0.0.1").get("/").status_code == 200


@pytest.mark.parametrize(
    "header",
    [*sorted(access.FORWARDED), "x-forwarded-for", "x-forwarded-host", "X-Forwarded-Server"],
)
def test_a_proxy_on_this_machine_does_not_make_its_clients_local(
    browser: Browser, header: str
) -> None:
    assert browser.get("/", headers={header: "192.0.2.1"}).status_code == 403


def test_without_actions_every_viewer_only_looks(sqlite_app: App) -> None:
    found = Page(browse(sqlite_app, role="admin").get("/").text).text
    assert "local, viewer" in found
    assert "local, admin" in Page(browse(sqlite_app, role="admin", actions=True).get("/").text).text


def test_a_token_is_needed_for_all_but_health_and_the_form(sqlite_app: App) -> None:
    client = Browser(dashboard_with(sqlite_app), peer="127.0.0.1")
    assert client.get("/").headers["location"] == "/login"
    for path in ("/system", "/api/v1/overview", "/docs", "/nothing"):
        found = client.get(path, headers={"accept": "application/json"})
        assert (found.status_code, found.headers["www-authenticate"][:6]) == (401, "Bearer")
    for path in ("/healthz", "/readyz", "/login", "/static/page.css"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer ", 401),
        (TOKEN, 401),
        ("Basic " + base64.b64encode(f"token:{TOKEN}".encode()).decode(), 200),
        ("Basic " + base64.b64encode(f"root:{TOKEN}".encode()).decode(), 401),
        ("Basic !!", 401),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), 401),
    ],
)
def test_a_token_is_taken_as_bearer_or_basic_and_only_whole(
    sqlite_app: App, given: str, code: int
) -> None:
    client = Browser(dashboard_with(sqlite_app))
    headers = {"authorization": given, "accept": "application/json"}
    assert client.get("/system", headers=headers).status_code == code


def test_a_token_in_the_url_is_no_token(sqlite_app: App) -> None:
    client = Browser(dashboard_with(sqlite_app))
    assert client.get(f"/?token={TOKEN}").headers["location"].startswith("/login?next=")


def test_every_token_is_compared_in_constant_time(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []
    real = access.hmac.compare_digest
    monkeypatch.setattr(
        access.hmac, "compare_digest", lambda a, b: compared.append(b) or real(a, b)
    )
    door = dashboard_with(sqlite_app, f"ann viewer {TOKEN}", f"bob admin {OTHER}").site.door
    assert isinstance(door, access.Tokens)
    assert door.viewer(TOKEN, "token") == Viewer("ann", Role.VIEWER, "token")
    assert compared == [TOKEN.encode(), OTHER.encode()]  # also after one that fits


def test_a_browser_logs_in_and_out(sqlite_app: App) -> None:
    client = Browser(dashboard_with(sqlite_app, f"ann operator {TOKEN}", actions=True))
    wrong = client.log_in("something else")
    assert (wrong.status_code, "no token" in wrong.text) == (401, True)
    assert client.get("/").status_code == 303
    done = client.log_in()
    cookie = done.headers["set-cookie"]
    assert done.status_code == 303
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert TOKEN not in cookie
    assert "ann, operator" in Page(client.get("/").text).text
    assert client.submit("/logout", {}).status_code == 303
    assert client.get("/").headers["location"] == "/login"


def test_a_log_out_ends_all_sessions_that_the_browser_has_there(sqlite_app: App) -> None:
    """With one key those of the dashboard at "/" count at "/queue" too."""
    key = "k" * 32
    upper, lower = (
        Browser(dashboard_with(sqlite_app, root_path=root, key=key)) for root in ("", "/queue")
    )
    upper.log_in()
    lower.cookies = upper.cookies
    assert lower.get("/queue/").status_code == 200
    lower.submit("/queue/login", {"token": TOKEN}, page="/queue/login")
    assert len(list(lower.cookies.jar)) == 2
    assert lower.submit("/queue/logout", {}, page="/queue/").status_code == 303
    assert lower.get("/queue/").headers["location"] == "/queue/login"


@pytest.mark.parametrize("root", ["", "/queue"])
def test_a_log_in_leads_on_to_the_page_that_was_asked_for(sqlite_app: App, root: str) -> None:
    client = Browser(dashboard_with(sqlite_app, root_path=root))
    wanted = f"{root}/messages?topic=a%20b&status=dead"
    form = client.get(wanted).headers["location"]
    assert form.startswith(f"{root}/login?next=")
    for token, code in (("a wrong one", 401), (TOKEN, 303)):
        page = Page(client.get(form).text)
        kept, _ = (one["value"] for _, one in page.elements if one.get("name") == "next")
        sent = {"token": token, "next": kept}
        found = client.submit(f"{root}/login", sent, page=f"{root}/login")
        assert found.status_code == code
        assert code == 303 or 'name="next" value="/' in found.text
    assert found.headers["location"] == wanted
    assert client.get(wanted).status_code == 200


def test_a_form_that_comes_after_the_session_has_ended_leads_to_the_log_in(sqlite_app: App) -> None:
    client = Browser(dashboard_with(sqlite_app, f"ann operator {TOKEN}", actions=True))
    sent = {"origin": HERE, "referer": f"{HERE}/act/pause-topic?name=t"}
    found = client.post("/act/pause-topic", data={"name": "t", "reason": "r"}, headers=sent)
    assert found.status_code == 401
    link = "/login?next=%2Fact%2Fpause-topic%3Fname%3Dt"
    assert link in Page(found.text).links()
    assert 'value="/act/pause-topic?name=t"' in client.get(link).text


@pytest.mark.parametrize("root", ["", "/queue"])
@pytest.mark.parametrize(
    "place",
    [
        *("//evil.example", "/{}//evil.example", "/{}/%2fevil.example", "\\\\evil.example"),
        *("/{}/\\evil.example", "/{}/%5cevil.example", "/{}/%5Cevil.example", "/{}/..//evil"),
        *("/{}/../evil", "/{}/%2e%2E/evil", "/{}/.%2e/evil", "/{}/a/../../evil", "/{}x/evil"),
        *("/{}/..#", "/{}/%2e%2e#x", "/{}/a/../..#?"),
        *("http://evil.example/{}/", "https:evil.example", "javascript:alert(1)", "%2f{}/a"),
        *("/{}/\t/evil.example", "\t//evil.example", " /{}/", "evil.example", "", "/{}/\r\nx: y"),
    ],
)
def test_a_log_in_leads_to_no_place_but_of_this_dashboard(
    sqlite_app: App, root: str, place: str
) -> None:
    at = place.replace("/{}", root).replace("{}", root[1:])
    client = Browser(dashboard_with(sqlite_app, root_path=root))
    sent = {"token": TOKEN, "next": at}
    found = client.submit(f"{root}/login", sent, page=f"{root}/login")
    assert (found.status_code, found.headers["location"]) == (303, f"{root}/")


def test_a_form_of_another_site_ends_no_session(sqlite_app: App, subtests: Any) -> None:
    """It comes without the cookie, and the browser would take the one of the answer."""
    for dashboard in (dashboard_with(sqlite_app), sqlite_app.web(actions=True)):
        for sent in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            with subtests.test(dashboard=dashboard, sent=sent):
                found = Browser(dashboard).post("/login", data={"token": "x"}, headers=sent)
                assert (found.status_code, found.headers.get("set-cookie")) == (403, None)


@pytest.mark.parametrize("key", [None, "k" * 32])
def test_a_dashboard_finds_its_session_among_cookies_of_other_paths(
    sqlite_app: App, key: str | None
) -> None:
    """A browser sends those of the longest path first; of one host they may be of the same name."""
    upper, lower = (
        Browser(dashboard_with(sqlite_app, root_path=root, key=key)) for root in ("", "/queue")
    )
    upper.log_in()
    lower.submit("/queue/login", {"token": TOKEN}, page="/queue/login")
    (theirs,), (ours,) = upper.cookies.items(), lower.cookies.items()
    assert theirs[0] == ours[0]
    for texts in ([ours[1], theirs[1]], [theirs[1], ours[1]], ["x", ours[1]]):
        sent = {"cookie": "; ".join(f"{ours[0]}={text}" for text in texts), "origin": HERE}
        client = Browser(lower.app)
        page = client.get("/queue/", headers=sent)
        assert page.status_code == 200
        token = re.search(r'name="csrf" value="([\w-]+)"', page.text)
        assert token
        form = {"csrf": token[1], "theme": "dark"}
        assert client.post("/queue/theme", data=form, headers=sent).status_code == 303


def test_of_two_colours_that_of_the_longer_path_counts(browser: Browser) -> None:
    sent = {"cookie": "msgworker_theme=dark; msgworker_theme=light"}
    assert 'data-theme="dark"' in browser.get("/", headers=sent).text


def test_a_log_in_from_another_site_is_refused(sqlite_app: App) -> None:
    client = Browser(dashboard_with(sqlite_app))
    assert client.post("/login", data={"token": TOKEN}).status_code == 403


def test_a_session_ends_with_its_token_its_time_and_its_key(sqlite_app: App) -> None:
    key = "k" * 32
    client = Browser(dashboard_with(sqlite_app, f"ann admin {TOKEN}", key=key))
    client.log_in()
    same = Browser(dashboard_with(sqlite_app, f"ann admin {TOKEN}", key=key))
    same.cookies = client.cookies
    assert same.get("/").status_code == 200
    for lines, other_key in (
        ((f"ann admin {OTHER}",), key),
        ((f"bob admin {TOKEN}",), key),
        ((f"ann admin {TOKEN}",), None),
    ):
        other = Browser(dashboard_with(sqlite_app, *lines, key=other_key))
        other.cookies = client.cookies
        assert other.get("/").status_code == 303
    late = Sessions(key, seconds=-1)
    assert late.read(late.text_of(late.begin())) is None


def test_a_cookie_that_was_changed_is_no_session() -> None:
    sessions = Sessions()
    text = sessions.text_of(sessions.begin(tokens.Entry("ann", TOKEN)))
    found = sessions.read(text)
    assert found is not None
    assert found.name == "ann"
    assert found.until > time.time()
    for bad in (None, "", ".", "a.b", text[:-1], "A" + text[1:], text + "0", "ü.é"):
        assert sessions.read(bad) is None


def test_a_proxy_names_the_user_if_it_is_trusted(sqlite_app: App) -> None:
    from msgworker.web import access, application

    door = access.Proxied("x-remote-user", access.networks_of(["10.0.0.0/8"]), Role.OPERATOR)
    dashboard = application.dashboard(sqlite_app, auth=door, actions=True)
    near, far = Browser(dashboard, peer="10.1.2.3"), Browser(dashboard, peer="127.0.0.1")
    assert "ann, operator" in Page(near.get("/", headers={"x-remote-user": "ann"}).text).text
    assert near.get("/").status_code == 403
    assert (
        near.get("/", headers=[("x-remote-user", "a"), ("x-remote-user", "b")]).status_code == 403
    )
    assert far.get("/", headers={"x-remote-user": "ann"}).status_code == 403


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (b"J\xc3\xbcrgen M\xc3\xbcller \xe6\x9d\x8e", "Jürgen Müller 李"),
        (b"Voil\xc3\xa0", "Voilà"),
        (b"J\xfcrgen", "Jürgen"),
    ],
)
def test_the_name_of_a_user_behind_a_proxy_is_utf8_or_else_latin1(sent: bytes, name: str) -> None:
    door = access.Proxied("x-user", access.networks_of(["127.0.0.1"]))
    scope = {"type": "http", "headers": [(b"x-user", sent)], "client": ("127.0.0.1", 1)}
    found = asyncio.run(door.admit(HTTPConnection(scope)))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("found", "shown"),
    [("ann", "ann, viewer"), (Viewer("bob", Role.ADMIN), "bob, admin"), (None, None), ("", None)],
)
def test_a_callable_says_who_it_is(sqlite_app: App, found: Any, shown: str | None) -> None:
    async def later(_: Any) -> Any:
        return found

    for auth in (lambda _: found, later):
        answer = browse(sqlite_app, auth=auth, actions=True).get("/")
        assert answer.status_code == (403 if shown is None else 200)
        assert shown is None or shown in Page(answer.text).text


def test_a_viewer_who_claims_to_be_a_token_still_needs_the_form(sqlite_app: App) -> None:
    auth = lambda _: Viewer("ann", Role.ADMIN, "token")  # noqa: E731
    client = browse(sqlite_app, auth=auth, actions=True)
    assert client.post("/theme", data={"theme": "dark"}).status_code == 403


# ---------------------------------------------------------------- token files, options


def test_a_token_file_is_for_its_owner_only(tmp_path: Path) -> None:
    place = tmp_path / "tokens"
    place.write_text(f"# people\nann operator {TOKEN}\n{OTHER}\n")
    for mode in (0o640, 0o604, 0o620):
        place.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            tokens.read_tokens(place)
    place.chmod(0o600)
    found = tokens.read_tokens(place)
    assert [(one.name, one.role) for one in found] == [("ann", Role.OPERATOR), ("token", None)]
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no token"),
        ("short", "16"),
        (f"ann boss {TOKEN}", "viewer, operator or admin"),
        (f"ann {TOKEN}", "NAME ROLE TOKEN"),
        (f"ann viewer {TOKEN}\nann admin {OTHER}", "same name"),
        (f"ann viewer {TOKEN}\nbob admin {TOKEN}", "same token"),
    ],
)
def test_a_wrong_token_file_is_refused_without_its_tokens(
    tmp_path: Path, text: str, says: str
) -> None:
    place = tmp_path / "tokens"
    place.write_text(text)
    place.chmod(0o600)
    with pytest.raises(ConfigError, match=says) as error:
        tokens.read_tokens(place)
    assert TOKEN not in str(error.value)


def settings(**given: Any) -> dict[str, Any]:
    from msgworker.config import SETTINGS

    return {n: s.default for n, s in SETTINGS.items()} | {f"web_{n}": v for n, v in given.items()}


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::", "ops.example.com"])
def test_another_address_without_authentication_is_refused(sqlite_app: App, host: str) -> None:
    with pytest.raises(ConfigError, match="no authentication: set MSGWORKER_WEB_TOKEN") as error:
        serving.dashboard_for(sqlite_app, settings(host=host, allowed_hosts=["a"]), {})
    assert error.value.exit_code == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.9"])
def test_loopback_needs_none(sqlite_app: App, host: str) -> None:
    made = serving.dashboard_for(sqlite_app, settings(host=host), {})
    assert isinstance(made.site.door, access.Local)
    assert made.site.options.actions is False


@pytest.mark.parametrize(
    ("given", "environ", "says"),
    [
        ({"host": "0.0.0.0"}, {"MSGWORKER_WEB_TOKEN": TOKEN}, "--allowed-host"),
        ({"trusted_proxy_header": "X-User"}, {}, "--trusted-proxy ADDRESS"),
        (
            {"trusted_proxy_header": "X-User", "trusted_proxies": ["10.0.0.1"]},
            {"MSGWORKER_WEB_TOKEN": TOKEN},
            "not both",
        ),
        ({"trusted_proxies": ["ops"]}, {}, "address or a network"),
        ({"root_path": "queue"}, {}, "such as /queue"),
        ({}, {"MSGWORKER_WEB_TOKEN": "hunter2"}, "16 printable"),
        ({}, {"MSGWORKER_WEB_KEY": "hunter2"}, "32 characters"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_it_listens(
    sqlite_app: App, given: dict[str, Any], environ: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        serving.dashboard_for(sqlite_app, settings(**given), environ)
    assert "hunter2" not in str(error.value)


def test_the_environment_is_not_asked_for_more_than_the_token() -> None:
    assert tokens.tokens_from({}) == ()
    assert tokens.tokens_from({"MSGWORKER_WEB_TOKEN": TOKEN})[0].token == TOKEN
    assert "MSGWORKER_WEB_TOKEN" not in os.environ


def test_the_colours_are_set_before_the_log_in_too(sqlite_app: App) -> None:
    found = Browser(dashboard_with(sqlite_app))
    answer = found.submit("/theme", {"theme": "dark", "next": "/login"}, page="/login")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert 'data-theme="dark"' in found.get("/login").text


@pytest.mark.parametrize("header", ["via", "x-forwarded-proto"])
def test_every_usual_sign_of_a_proxy_makes_a_client_no_local_one(
    browser: Browser, header: str
) -> None:
    assert browser.get("/", headers={header: "1.1 cache"}).status_code == 403


def test_a_client_of_http_1_0_is_a_proxy(sqlite_app: App) -> None:
    """nginx asks so, and adds no header; no browser does."""
    dashboard = sqlite_app.web()

    async def older(scope: Any, receive: Any, send: Any) -> None:
        await dashboard({**scope, "http_version": "1.0"}, receive, send)

    assert Browser(dashboard).get("/").status_code == 200
    assert Browser(older).get("/").status_code == 403


def test_two_dashboards_on_one_host_have_a_session_each(sqlite_app: App) -> None:
    """A browser sends the cookies of a host to each of its ports."""
    one, other = (
        Browser(dashboard_with(sqlite_app), base_url=f"http://127.0.0.1:{port}")
        for port in (8080, 8081)
    )
    other.cookies = one.cookies
    for browser in (one, other, one):
        if browser.get("/").status_code != 200:
            assert browser.log_in().status_code == 303
    for browser in (one, other):
        assert browser.get("/").status_code == 200
        assert browser.submit("/theme", {"theme": "dark"}).status_code == 303


def test_many_log_outs_of_one_end_no_session_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgworker.web.access.MOST_ENDED", 3)
    ann, bob = (entry(name * 20, "test", name=name) for name in ("ann", "bob"))
    sessions = Sessions()
    before, kept = sessions.begin(ann), sessions.begin(bob)
    for _ in range(5):
        sessions.end(sessions.begin(ann))
    assert not sessions.is_valid(before)
    assert sessions.is_valid(kept)
    assert sessions.is_valid(sessions.begin(ann))  # at the same moment


def test_a_stolen_cookie_does_not_let_tokens_be_tried_by_it() -> None:
    found = entry("a-weak-token-1234", "test", name="ann")
    one, other = Sessions(), Sessions()
    assert one.begin(found).proof == one.proof_of(found) != other.proof_of(found)


@pytest.mark.parametrize(
    ("says", "role"),
    [
        ({"x-role": "admin"}, "admin"),
        ({"x-role": "Operator"}, "operator"),
        ({"x-role": "root"}, "viewer"),
        ({}, "viewer"),
    ],
)
def test_a_proxy_may_say_the_role_of_each_user(
    sqlite_app: App, says: dict[str, str], role: str
) -> None:
    conf = {
        "web_trusted_proxy_header": "X-User",
        "web_trusted_proxies": ["127.0.0.1"],
        "web_role_header": "X-Role",
        "web_role": "admin",
        "web_token_file": None,
    }
    served = sqlite_app.web(auth=serving.door_for(conf, {}), actions=True)
    page = Browser(served).get("/", headers={"x-user": "ann", **says}).text
    assert f"ann, {role}" in Page(page).text
    with pytest.raises(ConfigError, match="--role-header"):
        serving.door_for(conf | {"web_trusted_proxy_header": None}, {})


def test_more_log_outs_than_are_kept_end_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_ENDED", 3)
    made = tokens.Sessions()
    ann = tokens.entry("a-token-of-the-tests", "test", name="ann")
    begun = [made.begin(ann) for _ in range(5)]
    for one in begun[:3]:
        made.end(one)
    assert [made.is_valid(one) for one in begun] == [False] * 3 + [True] * 2
    made.end(begun[3])
    assert not any(made.is_valid(one) for one in begun)


def test_a_browser_that_never_logged_in_ends_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every browser could end those of all."""
    monkeypatch.setattr(tokens, "MOST_ENDED", 1)
    made = tokens.Sessions()
    ann = made.begin(tokens.entry("a-token-of-the-tests", "test", name="ann"))
    for _ in range(3):
        made.end(made.begin())
    assert made.is_valid(ann)
