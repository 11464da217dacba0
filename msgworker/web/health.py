"""What probes and scrapers ask: /healthz, /readyz and /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from msgworker.errors import ConfigError
from msgworker.logs import logger
from msgworker.metrics import need

if TYPE_CHECKING:
    from msgworker.web.site import Site

# --- /healthz: does the process work? /readyz: does its database?
#
# Both are answered without authentication, so the answer is one word.

log = logger("msgworker.web")


async def healthz(request: Request) -> Response:
    """200 while the process works: it answers, and its threads do not all hang."""
    stuck = request.app.state.site.threads.stuck
    return JSONResponse({"status": "failed" if stuck else "ok"}, 503 if stuck else 200)


async def checks(site: Site) -> dict[str, bool]:
    """What has to work; the instances only if this process runs some. Requests within 2 s share one
    read, because these come without authentication."""
    found = {"database": await site.look(site.ops.probe)}
    beats = site.app.heartbeats
    if beats:
        found["heartbeat"] = all(beats.values())
    return found


async def readyz(request: Request) -> Response:
    """200 if the database answers, the tables are there, code of this version may work on them, and
    the instances of this process renew their leases; else 503 with the names of what does not."""
    site = request.app.state.site
    try:
        found = await checks(site)
    except HTTPException as error:
        log.warning("not ready: %s", error.detail)
        found = {"database": False}
    fine = all(found.values())
    words = {name: "ok" if ok else "failed" for name, ok in found.items()}
    body = {"status": "ok" if fine else "failed", "checks": words}
    return JSONResponse(body, 200 if fine else 503)


routes = [
    Route("/healthz", healthz, name="healthz"),
    Route("/readyz", readyz, name="readyz"),
]


# --- /metrics: counts of this process since the first scrape, and counts of the database.


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


metrics_routes = [Route("/metrics", metrics, name="metrics")]
