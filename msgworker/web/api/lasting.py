"""Writes that may last, such as a throttled rerun: a job, for which the request waits a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException

from msgworker.ops.results import Progress, Repaired, Tell
from msgworker.web.api.calling import Call
from msgworker.web.hardships import AFTER
from msgworker.web.jobs import Job, TooMany

WAIT_SECONDS = 5.0
BEGIN_SECONDS = 60.0
"""A write that has not begun by then is ended, and answered with an error."""
LOOK_SECONDS = 0.02


async def lasting(
    call: Call, title: str, write: Callable[[Tell], Repaired], *, wait: float = WAIT_SECONDS
) -> Repaired | Progress:
    """The result of a write, or how far it is if it takes longer than `wait` seconds.

    Raises what it raises; HTTPException 503 if too many run.
    """
    failed: list[Exception] = []

    def work(tell: Tell) -> Repaired:
        try:
            return write(tell)
        except Exception as error:
            failed.append(error)
            raise

    by = call.site.viewer(call.request).name
    try:
        job = call.site.jobs.start(work, title=title, by=by, back="overview", back_text="Overview")
    except TooMany as error:
        raise HTTPException(503, str(error), {"Retry-After": "5"}) from error
    begun = time.monotonic()
    while not _answers(job, time.monotonic() - begun, wait):
        await asyncio.sleep(LOOK_SECONDS)
    if failed:
        raise call.site.hardships.answer(failed[0], job.attempt.left) or failed[0]
    if isinstance(job.result, Repaired):
        return job.result
    if job.progress is None or job.op_id is None:
        left = job.attempt.give_up()
        text = (
            f"the messages were not found and counted within {BEGIN_SECONDS:g} s, so it was ended"
        )
        rest = AFTER.get(left, "nothing was done; name fewer")
        raise HTTPException(503, f"{text}; {rest}")
    return job.progress


def _answers(job: Job, seconds: float, wait: float) -> bool:
    """Whether there is something to answer."""
    if job.over.is_set() or seconds > max(wait, BEGIN_SECONDS):
        return True
    return seconds > wait and job.op_id is not None
