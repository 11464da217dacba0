"""A secret that stands in every place where one may stand, and where it must not be seen."""

from __future__ import annotations

import io
import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from msgworker import App, Message
from msgworker.cli import main
from msgworker.web import application
from tests.support.programs import LOOKS
from tests.support.rows import send
from tests.support.spans import Spans, recorded
from tests.support.web import HERE, Browser, Page, one_loop

CANARY = "hunter2canary"
CARD = "4111canary"
"""In payloads, which `redact` hides on pages; the command line shows those of one message."""
TROUBLE = f"https://bob:{CANARY}@crm.test/x?api_key={CANARY} refused"
TOKEN = f"{CANARY}-token-of-the-tests"
SETTINGS = {
    "MSGWORKER_LOCKS": f"redis://ann:{CANARY}@127.0.0.1:1/0",
    "MSGWORKER_WEB_TOKEN": TOKEN,
    "MSGWORKER_WEB_KEY": CANARY * 4,
}
COMMANDS = (*LOOKS, *(f"{look} --json" for look in LOOKS), "show 2")
SAME = 1  # how many pages that differ by their values only are looked at


class Scene:
    """A table with messages, items, schedules and an audit that have the secret, the spans of their
    traces, and the dashboard that `msgworker web` makes of settings that have it."""

    def __init__(self, url: str, spans: Spans) -> None:
        self.url = url
        self.spans = spans
        self.app = App(self.url, backoff_seconds=0, tracing=True)
        self.app.create_schema()

        @self.app.handler("settle", max_tries=1)
        def fail(msg: Message) -> None:
            raise OSError(TROUBLE)

        @self.app.handler("print", max_tries=1)
        def fan(msg: Message, ctx: Any) -> None:
            done = ctx.fan_out(part, [1, 2], threads=1)
            done.raise_for_failed()

        def part(item: int) -> Any:
            if item == 1:
                return {"card": CARD, "seen": TROUBLE}
            raise OSError(TROUBLE)

        self.app.every("24h", topic="settle", name="nightly", payload={"card": CARD, "of": TROUBLE})
        (self.one,) = send(self.app, "a", topic="settle", payload={"card": CARD})
        payload = {"card": CARD, "of": TROUBLE}
        (self.two,) = send(self.app, "b", topic="print", payload=payload)
        self.app.drain(linger=0)
        ops = self.app.ops.acting(actor="ann", source="test")
        ops.rerun(ids=[self.one], reason=f"again {TROUBLE}")
        ops.run_now("nightly", reason=f"now {TROUBLE}")
        ops.pause("print", reason=f"wait {TROUBLE}")
        (waits,) = send(self.app, "c", topic="print", payload={"card": CARD})
        ops.cancel([waits], reason=f"no {TROUBLE}")
        self.app.drain(linger=0)
        self.dashboard = served(url)


def served(url: str) -> Any:
    """The dashboard that the command would serve."""
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "msgworker.web.serving.serve",
            lambda dashboard, listener: (made.append(dashboard), listener.close()),
        )
        patched.setitem(application.dashboard.__kwdefaults__, "deadline", 60.0)  # a busy machine
        options = ["--port", "0", "--allow-actions", "--redact", "**.card", "--allowed-host"]
        done = CliRunner().invoke(
            main, ["web", "--url", url, *options, HERE.removeprefix("http://")], env=SETTINGS
        )
    assert done.exit_code == 0, done.output + done.stderr
    assert CANARY not in done.output + done.stderr
    return made[0]


@pytest.fixture(params=["sqlite", "postgresql"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """With the secret in the URL of the database too, where it has a password."""
    database = request.getfixturevalue(request.param)
    url = sa.make_url(database.url)
    if request.param == "postgresql":
        url = url.set(password=CANARY)
    log = io.StringIO()
    handler, own = logging.StreamHandler(log), logging.getLogger("msgworker")
    before = own.level
    own.addHandler(handler)
    own.setLevel(logging.DEBUG)
    try:
        with pytest.MonkeyPatch.context() as patched, recorded(patched) as spans:
            made = Scene(url.render_as_string(hide_password=False), spans)
            yield made
    finally:
        own.removeHandler(handler)
        own.setLevel(before)
        made.dashboard.site.close()
        made.dashboard.site.app.engine.dispose()
        made.app.engine.dispose()
    assert "refused" in log.getvalue()
    assert CANARY not in log.getvalue()
    assert CARD not in log.getvalue()


@pytest.fixture
def client(scene: Scene) -> Iterator[Browser]:
    """One who has logged in."""
    found = Browser(scene.dashboard)
    assert found.log_in(TOKEN).status_code == 303
    with one_loop(found):
        yield found


def assert_without_secrets(found: Any, path: str) -> None:
    assert found.status_code < 500, path
    for secret in (CANARY, CARD):
        assert secret not in found.text, path
        assert secret not in str(found.headers), path


@pytest.mark.quick("sqlite")
def test_no_page_shows_a_secret(scene: Scene, client: Browser) -> None:
    """All that links lead to, the pages before a write too."""
    ids = (scene.one, scene.two)
    to_see = ["/", *(f"/messages/{i}{rest}" for i in ids for rest in ("?payload=1", "/items"))]
    seen: set[str] = set()
    kinds: Counter[str] = Counter()
    told = 0
    while to_see:
        path = to_see.pop().partition("#")[0] or "/"
        kind = re.sub(r"\d+", "N", re.sub(r"=[^&]*", "=", path))
        kinds[kind] += 1
        if path in seen or kinds[kind] > SAME:
            continue
        seen.add(path)
        found = client.get(path)
        assert_without_secrets(found, path)
        told += "refused" in found.text
        if found.headers["content-type"].startswith("text/html"):
            to_see += Page(found.text).links()
    assert len(kinds) > 40
    assert told >= 12  # the error itself is told, and the reasons
    assert {"/system", "/failures.csv", "/audit/1", f"/messages/{scene.two}/items"} <= seen
    assert "redis://***@127.0.0.1" in client.get("/system").text.replace("ann:", "")


@pytest.mark.quick("postgresql")
def test_no_answer_shows_a_secret(scene: Scene, client: Browser) -> None:
    described, seen = client.get("/api/v1/openapi.json").json()["paths"], 0
    paths = ["/metrics", "/readyz", "/healthz", "/failures.csv"]
    for path, doings in described.items():
        if "get" in doings:
            for msg_id in (scene.one, scene.two):
                one = path.replace("{msg_id}", str(msg_id)).replace("{op_id}", "1")
                one = one.replace("{job_id}", "1")
                paths += [f"/api/v1{one}", f"/api/v1{one}?payload=1"]
    assert [one for one in paths if "{" in one] == []
    for path in dict.fromkeys(paths):
        found = client.get(path, headers={"accept": "application/json"})
        assert_without_secrets(found, path)
        seen += "refused" in found.text
    assert seen >= 6
    assert "schedules" in "".join(paths)


@pytest.mark.quick("postgresql")
def test_no_write_says_a_secret_again(scene: Scene, client: Browser) -> None:
    """Neither the page of the write, nor the answer of the API."""
    reason = {"reason": f"because {TROUBLE}"}
    page = f"/change/rerun?ids={scene.two}&order=force"
    sent = {"ids": str(scene.two), "order": "force", "expected_count": "1", **reason}
    answer = client.submit("/change/rerun", sent, page=page)
    assert answer.status_code == 303, answer.text
    assert_without_secrets(client.get(answer.headers["location"]), "the page of the write")
    headers = {"origin": HERE, "x-csrf-token": client.csrf()}
    for path, body in (
        (f"/messages/{scene.one}/rerun", {"force": True}),
        ("/topics/print/resume", {}),
        ("/schedules/nightly/run-now", {}),
        ("/rerun", {"filter": {"error": TROUBLE}}),
    ):
        found = client.post(f"/api/v1{path}", json=body | reason, headers=headers)
        assert found.status_code == 200, found.text
        assert_without_secrets(found, path)
    audit = client.get("/audit")
    assert_without_secrets(audit, "/audit")
    assert audit.text.count("because https://bob:***@") >= 4


@pytest.mark.quick("sqlite")
def test_no_refusal_says_a_secret_again(scene: Scene, client: Browser) -> None:
    """A secret in a URL that was pasted in the wrong place."""
    page = client.get("/messages", params={"error": TROUBLE, "since": "x"})
    assert page.status_code == 400
    sent = {"origin": HERE, "x-csrf-token": client.csrf()}
    found = client.post(f"/api/v1/messages/{TROUBLE}/rerun", json={"reason": "x"}, headers=sent)
    assert found.status_code >= 400
    assert CANARY not in found.text


@pytest.mark.quick("postgresql")
def test_no_command_shows_a_secret(scene: Scene) -> None:
    told = 0
    for command in COMMANDS:
        args = [*command.split(), "--url", scene.url]
        done = CliRunner().invoke(main, args, env=SETTINGS)
        shown = re.sub(
            r'\\?"of\\?":.*', "", done.output
        )  # in a payload: the command line shows that
        assert CANARY not in shown + done.stderr, command
        nobody = (
            3 if command.startswith(("locks", "partitions")) else 0
        )  # answers at the place of the locks
        assert done.exit_code in (0, 1, 4, 5, nobody), (command, done.stderr)
        told += "refused" in done.output
    assert told >= 6


def test_no_span_has_a_secret(scene: Scene) -> None:
    """Neither of what was sent and handled, nor of a send that the database refuses."""
    with scene.app.engine.begin() as conn:
        conn.execute(sa.text("ALTER TABLE msgworker_message RENAME TO away"))
    with pytest.raises(sa.exc.DBAPIError):
        send(scene.app, CANARY, topic="settle", payload={"card": CARD, "of": TROUBLE})
    spans = scene.spans.all()
    named = {span.name for span in spans}
    assert {"send settle", "process settle", "process print", "item print"} <= named
    told = [span.to_json() for span in spans]  # its attributes, events, links, status and resource
    assert sum("refused" in one for one in told) >= 2
    assert sum("not sent" in one for one in told) == 1
    for one in told:
        assert CANARY not in one
        assert CARD not in one


@pytest.mark.quick("sqlite")
def test_what_is_kept_of_an_error_has_no_secret(scene: Scene) -> None:
    """Payloads and values of items are kept as they are."""
    with scene.app.engine.connect() as conn:
        for table in sa.inspect(conn).get_table_names():
            rows = conn.execute(sa.text(f'SELECT * FROM "{table}"')).mappings().all()
            for row in rows:
                kept = {
                    key: one for key, one in row.items() if key not in ("payload", "item_value")
                }
                assert CANARY not in str(kept), table
