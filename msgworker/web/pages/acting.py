"""Writes about one thing that is no message: a topic, an instance, a schedule, a lock.

Each has a page that says what it would do, and asks for a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.errors import ConfigError
from msgworker.ops import Ops
from msgworker.ops.results import Repaired, Tell
from msgworker.web import forms
from msgworker.web.pages.changing import MOST_REASON
from msgworker.web.pages.jobs import begun
from msgworker.web.sessions import Role
from msgworker.web.site import Site, or_refused, site_of

MOST_NAME = 255
Call = Callable[..., Repaired]


@dataclass(frozen=True, slots=True)
class Act:
    """A write. call: the function of ops. what: the word before the name. text: what it does.
    force: what a box says that allows more, "" = there is none. page: the route to go back to."""

    kind: str
    role: Role
    verb: str
    what: str
    call: Callable[[Ops], Call]
    text: str
    page: str
    force: str = ""
    told: bool = False
    """Whether the call tells its progress."""
    elsewhere: bool = False
    """Whether it is about a lock that is not in the database."""


ACTS = {
    one.kind: one
    for one in (
        Act(
            "pause-topic",
            Role.OPERATOR,
            "Pause",
            "topic",
            lambda ops: ops.pause,
            "Its handlers do not start from the next heartbeat of each instance on. Those that "
            "run go on to their end. Messages behind one of this topic wait too.",
            "topics",
        ),
        Act(
            "resume-topic",
            Role.OPERATOR,
            "Resume",
            "topic",
            lambda ops: ops.resume,
            "Its handlers start again.",
            "topics",
        ),
        Act(
            "remove-limit",
            Role.ADMIN,
            "Remove the limits of",
            "topic",
            lambda ops: ops.remove_limit,
            "Its max_running and rate are forgotten, for a topic whose handlers declare none any "
            "more. An instance whose handler does declares them again.",
            "topics",
        ),
        Act(
            "release",
            Role.OPERATOR,
            "Release",
            "instance",
            lambda ops: ops.release,
            "Its messages are given back, and a try is counted for each. Do this if its process "
            "is gone for good and others must not wait for its lease to end.",
            "instances",
            "it is alive: take its lease over, which takes as long as the lease (force)",
            told=True,
        ),
        Act(
            "pause-schedule",
            Role.OPERATOR,
            "Pause",
            "schedule",
            lambda ops: ops.pause_schedule,
            "It does not fire from now on. Messages that it has sent are handled.",
            "schedules",
        ),
        Act(
            "resume-schedule",
            Role.OPERATOR,
            "Resume",
            "schedule",
            lambda ops: ops.resume_schedule,
            "It fires again, from its next tick on. Those of the pause are left out.",
            "schedules",
        ),
        Act(
            "run-schedule",
            Role.OPERATOR,
            "Run now",
            "schedule",
            lambda ops: ops.run_now,
            "Its message is sent now. Its ticks do not change.",
            "schedules",
        ),
        Act(
            "delete-schedule",
            Role.ADMIN,
            "Delete",
            "schedule",
            lambda ops: ops.delete_schedule,
            "It is deleted from the table; its messages stay. A program that still declares it "
            "writes it again at its next start.",
            "schedules",
        ),
        Act(
            "release-lock",
            Role.ADMIN,
            "Take away",
            "lock",
            lambda ops: ops.release_lock,
            "Its holder notices at its next renewal, and may work beside the next holder until "
            "then. A lock whose holder has died ends by itself.",
            "locks",
            "it is held: take it away nevertheless (force)",
        ),
    )
}
ACTS["release-lock-elsewhere"] = replace(
    ACTS["release-lock"], kind="release-lock-elsewhere", elsewhere=True
)


def act_of(request: Request) -> Act:
    """The act of the path, for whom the viewer has the role; raises HTTPException."""
    found = ACTS.get(request.path_params["kind"])
    if found is None:
        raise HTTPException(404)
    site = site_of(request)
    site.need(request, found.role)
    if found.elsewhere and site.elsewhere is None:
        raise HTTPException(404)
    return found


def name_of(text: str) -> str:
    """The name of a thing; raises ConfigError."""
    if not 0 < len(text) <= MOST_NAME:
        raise ConfigError(f"a name has 1 to {MOST_NAME} characters")
    return text


def forcing(act: Act, given: Any) -> dict[str, bool]:
    """The argument that allows more."""
    return {"force": True} if act.force and given.get("force") == "1" else {}


def placed(site: Site, act: Act) -> dict[str, Any]:
    """The argument that says where a lock is; may wait for the lock centre."""
    there = site.elsewhere
    return {"centre": there.centre()} if act.elsewhere and there is not None else {}


async def confirm(request: Request) -> Response:
    site, act = site_of(request), act_of(request)
    name = name_of(request.query_params.get("name", ""))
    forced = forcing(act, request.query_params)

    def call() -> Repaired:
        return act.call(site.ops)(name, **forced, **placed(site, act), dry_run=True)

    would = await site.ask(or_refused, call)
    return site.render(
        request,
        "act.html",
        act=act,
        name=name,
        forced=bool(forced),
        would=would,
        most_reason=MOST_REASON,
    )


async def write(request: Request) -> Response:
    site, act = site_of(request), act_of(request)
    form = forms.form_of(request)
    name, forced = name_of(form.get("name", "")), forcing(act, form)
    reason = form.get("reason", "").strip()
    if not 0 < len(reason) <= MOST_REASON:
        raise ConfigError(f"a reason of 1 to {MOST_REASON:,} characters is needed; it is audited")
    call = act.call(site.acting(request))

    def work(tell: Tell) -> Repaired:
        more = {"progress": tell} if act.told else {}
        return call(name, **forced, **placed(site, act), **more, reason=reason)

    return await begun(
        request,
        work,
        title=f"{act.verb} {act.what} {name}",
        back=site.url(request, act.page),
        back_text=act.page.capitalize(),
    )


routes = [
    Route("/act/{kind}", confirm, methods=["GET"], name="act"),
    Route("/act/{kind}", write, methods=["POST"]),
]
