"""Pictures of the dashboard: `python -m tests.web.screens [--only NAME]... [--all] [FOLDER]`.

By default those that the site shows, into docs/_static/screens: in light and dark, 1440 px wide.
--all: of every page, 390 px wide too. With a palette of 64 colours. Needs Chromium, which is
installed where that is possible, and the packages playwright and pillow.
"""

from __future__ import annotations

import argparse
import io
import itertools
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from msgworker import App, MessageTable
from msgworker.web.access import Role, Tokens, Viewer, entry
from tests.support.ops import NEW, put
from tests.web.chromium import opened
from tests.web.sample import sample

WIDTHS = (1440, 390)
COLOURS = ("light", "dark")
SHOWN = ("overview", "failures", "message", "lanes", "rerun", "schedules")
"""The pages whose pictures the site has, at the first width."""
MOST_HEIGHT = 1600
PALETTE, VIVID = 64, 16
SETTLED_MS = 300  # until the first event of the stream has loaded what is live


@contextmanager
def served(app: App, **options: Any) -> Iterator[str]:
    """The dashboard of an App on a port of loopback; its URL."""
    viewer = Viewer("alice", Role.ADMIN)
    given: dict[str, Any] = {"auth": lambda _: viewer, "actions": True} | options
    made = app.web(**given)
    config = uvicorn.Config(made, "127.0.0.1", 0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(15)
        made.site.close()


def small(png: bytes) -> bytes:
    """The same picture with few colours: the most frequent ones as they are, and of those that are
    not grey some more, so that a small red label does not become brown."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, MOST_HEIGHT)))
    counted = picture.getcolors(picture.width * picture.height)
    frequent = [colour for _, colour in sorted(counted, reverse=True)]
    vivid = [one for one in frequent if max(one) - min(one) > 60][:VIVID]
    chosen: dict[tuple[int, ...], tuple[int, ...]] = {}  # pillow takes those for the same
    for one in (*frequent[:8], *vivid, *frequent):
        chosen.setdefault(tuple(part >> 2 for part in one), one)
    frequent = list(chosen.values())[:PALETTE]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in frequent for part in colour])
    out = io.BytesIO()
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def take(folder: Path, only: Sequence[str] = (), widths: Sequence[int] = WIDTHS) -> int:
    """Take the pictures of all pages, or of some, and remove the others; returns their size in
    bytes."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as place, chdir(place), opened() as browser:
        app = App("sqlite:///crm.db", table=MessageTable(on_dead="block"))  # pages show the URL
        app.create_schema()
        pages = sample(app)
        for look in (_seen, _written):
            for width, colours in itertools.product(widths, COLOURS):
                how: dict[str, Any] = {
                    "viewport": {"width": width, "height": 900},
                    "color_scheme": colours,
                }
                how["timezone_id"] = "Europe/Berlin"
                with browser.new_context(**how) as context:
                    for name, png in look(app, context.new_page(), pages):
                        if only and name not in only:
                            continue
                        size = f"-{width}" if len(widths) > 1 else ""
                        pictures[f"{name}{size}-{colours}.png"] = small(png)
        app.engine.dispose()
    for old in folder.glob("*.png"):
        old.unlink()
    for name, png in pictures.items():
        (folder / name).write_bytes(png)
    return sum(map(len, pictures.values()))


def _seen(app: App, page: Any, pages: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Each page: its name, and its picture."""
    with served(app, label="PROD", redact=["card"]) as url:
        for name, path in pages.items():
            page.goto(url + path)
            page.wait_for_timeout(SETTLED_MS)
            yield name, page.screenshot(full_page=True)
        page.goto(url + pages["messages"])
        if page.locator(".menu summary").is_visible():
            page.locator(".menu summary").click()
            yield "menu", page.screenshot()
    tokens = Tokens((entry("a-token-of-the-pictures", "the pictures"),))
    with served(app, label="PROD", auth=tokens) as url:
        page.goto(url)
        yield "login", page.screenshot()


def _written(app: App, page: Any, _: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """The page of a write that runs; then it is ended."""
    put(app, *[(None, NEW)] * 60, topic="mail.old")
    with served(app, label="PROD") as url:
        page.goto(f"{url}/change/cancel?topic=mail.old")
        page.get_by_label("Reason").fill("INC-4715: they were sent twice")
        page.get_by_label("Messages a second").fill("4")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_text("It runs").wait_for()
        yield "write", page.screenshot()
        page.get_by_role("button", name="End it").click()
        page.get_by_text("It was ended").wait_for()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.web.screens", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("folder", nargs="?", default="docs/_static/screens", type=Path)
    asked = parser.parse_args()
    if asked.all:
        print(take(asked.folder), "bytes")
    else:
        print(take(asked.folder, asked.only or SHOWN, WIDTHS[:1]), "bytes")
