"""/metrics: what this process has counted since the first scrape, and what the database tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.errors import ConfigError
from msgworker.metrics import need
from msgworker.metrics.counting import Counting
from msgworker.metrics.exposition import text
from msgworker.metrics.looking import Looking

if TYPE_CHECKING:
    from msgworker import App


class Scrapes:
    """Counts from its making on; without a scrape nothing is counted."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._made: tuple[Counting, Looking] | None = None

    def text(self, accept: str) -> tuple[bytes, str]:
        """The answer and its content type."""
        with self._lock:
            if self._made is None:
                self._made = Counting(self._app), Looking(self._app.ops)
        counting, looking = self._made
        return text(lambda: (counting.snapshot(), looking.snapshot()), accept)


async def metrics(request: Request) -> Response:
    """The metrics, in the format that the client accepts."""
    site = request.app.state.site
    try:
        need()
    except ConfigError as error:
        return Response(f"{error}\n", 501, media_type="text/plain")
    body, kind = await site.ask(site.scrapes.text, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": kind})


routes = [Route("/metrics", metrics, name="metrics")]
