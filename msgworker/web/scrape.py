"""/metrics: what this process has counted since the first scrape, and what the database tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.errors import ConfigError
from msgworker.logs import logger
from msgworker.metrics import need
from msgworker.metrics.counting import Counting
from msgworker.metrics.exposition import text
from msgworker.metrics.looking import DOWN, Looking

if TYPE_CHECKING:
    from msgworker import App

log = logger("msgworker.web")


class Scrapes:
    """Counts from its making on; without a scrape nothing is counted."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._made: tuple[Counting, Looking] | None = None

    def text(self, accept: str) -> tuple[bytes, str]:
        """The answer and its content type, with a read of the database."""
        counting, looking = self._parts()
        return text(lambda: (counting.snapshot(), looking.snapshot()), accept)

    def without_database(self, accept: str) -> tuple[bytes, str]:
        """The same, while the database does not answer."""
        counting, _ = self._parts()
        return text(lambda: (counting.snapshot(), DOWN), accept)

    def forget(self) -> None:
        """What was seen of the database is out of date."""
        with self._lock:
            if self._made is not None:
                self._made = self._made[0], Looking(self._app.ops)

    def _parts(self) -> tuple[Counting, Looking]:
        with self._lock:
            if self._made is None:
                self._made = Counting(self._app), Looking(self._app.ops)
            return self._made


async def metrics(request: Request) -> Response:
    """The metrics, in the format that the client accepts; 200 while this process works, as
    exporters do: `msgworker_database_up` says whether the database does."""
    site = request.app.state.site
    try:
        need()
    except ConfigError as error:
        return Response(f"{error}\n", 501, media_type="text/plain")
    accept = request.headers.get("accept", "")
    try:
        body, kind = await site.ask(site.scrapes.text, accept)
    except HTTPException as error:  # too many or too slow reads
        log.warning("a scrape without the database: %s", error.detail)
        body, kind = site.scrapes.without_database(accept)
    return Response(body, headers={"content-type": kind})


routes = [Route("/metrics", metrics, name="metrics")]
