"""A secret that stands in every place where one may stand, and where it must not be seen."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from msgworker import App, Message
from msgworker.cli import main
from tests.support.rows import send
from tests.support.web import HERE, Browser

CANARY = "hunter2canary"
CARD = "4111canary"
"""In the payload, which `redact` hides on pages; the command line shows it."""
TROUBLE = f"https://bob:{CANARY}@crm.test/x?api_key={CANARY} refused"
COMMANDS = (
    "status --json",
    "list",
    "list --json",
    "failures",
    "failures --json",
    "lanes",
    "audit",
    "audit --json",
    "show 1",
    "show 2",
    "explain 1",
    "doctor",
    "config",
)


class Scene:
    """A table with a message whose payload and error have the secret, and who looks at it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/crm.db"
        self.app = App(self.url, backoff_seconds=0)
        self.app.create_schema()

        @self.app.handler("settle", max_tries=1)
        def fail(msg: Message) -> None:
            raise OSError(TROUBLE)

        @self.app.handler("print", max_tries=1)
        def fan(msg: Message, ctx: Any) -> None:
            ctx.fan_out(lambda item: fail(msg), [1], threads=1)

        (self.one,) = send(self.app, "a", topic="settle", payload={"card": CARD})
        send(self.app, "b", topic="print", payload={"card": CARD})
        self.app.drain(linger=0)
        self.app.ops.rerun(ids=[self.one], reason=f"again {TROUBLE}", actor="ann")
        self.app.drain(linger=0)
        self.dashboard = self.app.web(actions=True, redact=["**.card"])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    log = io.StringIO()
    handler, own = logging.StreamHandler(log), logging.getLogger("msgworker")
    own.addHandler(handler)
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        own.removeHandler(handler)
        made.dashboard.site.close()
        made.app.engine.dispose()
    lines = [one for one in log.getvalue().split("\n") if "raise OSError(" not in one]
    assert "refused" in log.getvalue()
    assert CANARY not in "\n".join(lines)


def paths(scene: Scene) -> list[str]:
    """Every page and answer without parameters, and those of the message."""
    site = scene.dashboard.site
    named = [str(site.starlette.url_path_for(route)) for _, route in site.nav]
    lists = [
        path.replace("{msg_id}", str(scene.one)).replace("{id}", str(scene.one))
        for path, doings in Browser(scene.dashboard)
        .get("/api/v1/openapi.json")
        .json()["paths"]
        .items()
        if "get" in doings
    ]
    api = [path if path.startswith("/api/") else f"/api/v1{path}" for path in lists]
    message = [f"/messages/{scene.one}{rest}" for rest in ("", "?payload=1", "?payload=show")]
    rest = ["/failures.csv", "/metrics", "/readyz", "/healthz", "/api/v1/openapi.json"]
    return [*named, *message, *rest, *(one for one in api if "{" not in one)]


def test_no_page_and_no_answer_shows_a_secret(scene: Scene) -> None:
    client, seen = Browser(scene.dashboard), 0
    for path in paths(scene):
        for accept in ("text/html", "application/json"):
            found = client.get(path, headers={"accept": accept})
            assert found.status_code < 500, path
            assert CANARY not in found.text, path
            assert CARD not in found.text, path
            assert CANARY not in str(found.headers), path
            seen += "refused" in found.text
    assert seen >= 5  # the error itself is told


def test_no_refusal_says_a_secret_again(scene: Scene) -> None:
    """A secret in a URL that was pasted in the wrong place."""
    client = Browser(scene.dashboard)
    page = client.get("/messages", params={"error": TROUBLE, "since": "x"})
    assert page.status_code == 400
    sent = {"origin": HERE, "x-csrf-token": client.csrf()}
    found = client.post(f"/api/v1/messages/{TROUBLE}/rerun", json={"reason": "x"}, headers=sent)
    assert found.status_code >= 400
    assert CANARY not in found.text


def test_no_command_shows_a_secret(scene: Scene) -> None:
    told = 0
    for command in COMMANDS:
        done = CliRunner().invoke(main, [*command.split(), "--url", scene.url])
        assert CANARY not in done.output + done.stderr, command
        assert done.exit_code in (0, 4, 5), (command, done.stderr)
        told += "refused" in done.output
    assert told >= 5


def test_what_is_kept_of_an_error_has_no_secret(scene: Scene) -> None:
    with scene.app.engine.connect() as conn:
        for table in scene.app.engine.dialect.get_table_names(conn):
            rows = conn.exec_driver_sql(f'SELECT * FROM "{table}"').mappings().all()
            for row in rows:
                assert CANARY not in str(row), table
