"""A write that was begun: how far it is, what it did, and a button that ends it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from msgworker.ops.results import ADVICE, Repaired, Why
from msgworker.web.forms import whole
from msgworker.web.jobs import Job, TooMany, Work
from msgworker.web.sessions import Role
from msgworker.web.site import Site, site_of

SOON_SECONDS = 1.5
"""How long the answer to a form waits for the write: most have ended by then."""
LOOK_SECONDS = 0.02
HELP = ADVICE | {
    Why.DONE: "the last choice of the order (force) runs it again",
    Why.RAN_LATER: (
        "the second choice of the order runs it and then, in order, the failed and dead messages "
        "behind it; the last one (force) runs it out of order"
    ),
    Why.KEY_TAKEN: "the last choice of the order (force) runs it without its key",
    Why.UNDATED: "`msgworker release --any-age` gives it back, if no consumer works on it",
}
"""The advice for each reason, in the words of the pages."""


async def begun(request: Request, work: Work, **about: Any) -> Response:
    """Begin a write, and go to its page."""
    site = site_of(request)
    try:
        job = site.jobs.start(work, by=site.viewer(request).name, **about)
    except TooMany as error:
        raise HTTPException(503, str(error)) from error
    for _ in range(int(SOON_SECONDS / LOOK_SECONDS)):
        if job.over.is_set():
            break
        await asyncio.sleep(LOOK_SECONDS)
    return RedirectResponse(site.url(request, "job", {"op": job.op_id}, job_id=job.job_id), 303)


def job_of(site: Site, request: Request) -> Job | None:
    return site.jobs.get(request.path_params["job_id"])


async def job(request: Request) -> Response:
    site = site_of(request)
    found = job_of(site, request)
    if found is None:
        op_id = whole(request.query_params, "op", 0, 0, 2**62) or None
        return site.render(request, "job_gone.html", 404, op_id=op_id)
    result = found.result if isinstance(found.result, Repaired) else None
    return site.render(
        request, "job.html", job=found, result=result, advice=HELP, over=found.over.is_set()
    )


async def end(request: Request) -> Response:
    site = site_of(request)
    site.need(request, Role.OPERATOR)
    found = job_of(site, request)
    if found is None:
        raise HTTPException(404, "this process does not know that write; the audit shows it")
    found.end()
    return RedirectResponse(site.url(request, "job", job_id=found.job_id), 303)


routes = [
    Route("/jobs/{job_id}", job, methods=["GET"], name="job"),
    Route("/jobs/{job_id}/end", end, methods=["POST"], name="job_end"),
]
