"""Writes: a page that shows what a write would do, by a dry run, then the write itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.errors import ConfigError
from msgworker.ops.results import OnProgress, Repaired
from msgworker.web import forms
from msgworker.web.forms import Selection, id_of, whole
from msgworker.web.pages.audit import HELP, begun
from msgworker.web.site import COUNTED, Refused, Site, or_refused, site_of
from msgworker.web.writes import CHANGES, ON_THINGS, Change, OnThing, placed

MOST_RATE = 100_000
MOST_REASON = 1000
MOST_NAME = 255
COUNT_SECONDS = 0.1
"""How long the page of a dry run counts, unless the viewer asks for the rest."""


def reason_of(form: Mapping[str, str]) -> str:
    """The reason of a write; raises ConfigError."""
    reason = form.get("reason", "").strip()
    if not 0 < len(reason) <= MOST_REASON:
        raise ConfigError(f"a reason of 1 to {MOST_REASON:,} characters is needed; it is audited")
    return reason


# --- Rerun, discard and cancel.


def change_of(request: Request) -> Change:
    """The change of the path, for whom the viewer has the role; raises HTTPException."""
    found = CHANGES.get(request.path_params["kind"])
    if found is None:
        raise HTTPException(404)
    site_of(request).need(request, found.role)
    return found


def options_of(change: Change, given: Mapping[str, str]) -> tuple[str, dict[str, bool]]:
    """What was chosen about the order; raises ConfigError."""
    chosen = given.get("order", "")
    for value, _, options in change.orders:
        if value == chosen:
            return value, options
    if chosen:
        raise ConfigError(f"order is none of a {change.kind}: {chosen!r:.60}")
    return "", {}


def chosen_of(given: Mapping[str, str]) -> Selection:
    """Which messages; raises ConfigError if none are chosen."""
    chosen = Selection.of(given)
    if not chosen.query:
        raise ConfigError("choose the messages first: on a page of messages, or by their group")
    return chosen.fixed


async def confirm(request: Request) -> Response:
    site, change = site_of(request), change_of(request)
    chosen = chosen_of(request.query_params)
    order, options = options_of(change, request.query_params)
    counts_on = request.query_params.get("count") == "on"
    ops = site.ops if counts_on else site.ops.within(site.settings.deadline, counting=COUNT_SECONDS)
    asked = chosen.asked | options | {"dry_run": True, "count_limit": COUNTED}
    dry: Callable[[], Repaired] = partial(getattr(ops, change.ops), **asked)
    would: Repaired | Refused = await site.count(or_refused, dry)
    return site.render(
        request,
        "change.html",
        change=change,
        chosen=chosen,
        order=order,
        would=would,
        counts_on=counts_on,
        further=chosen.query | {"order": order, "count": "on"},
        most=COUNTED,
        advice=HELP,
        most_reason=MOST_REASON,
        most_rate=MOST_RATE,
        back=back(site, request, chosen),
    )


async def write(request: Request) -> Response:
    site, change = site_of(request), change_of(request)
    form = forms.form_of(request)
    chosen = chosen_of(form)
    _, options = options_of(change, form)
    reason = reason_of(form)
    rate = whole(form, "rate", 0, 1, MOST_RATE) or None
    extent = extent_of(form)
    call = getattr(site.acting(request), change.ops)
    asked = chosen.asked | options | extent

    def work(on_progress: OnProgress) -> Repaired:
        found: Repaired = call(**asked, reason=reason, rate=rate, progress=on_progress)
        return found

    back_to, back_text = back(site, request, chosen)
    return await begun(
        request,
        work,
        title=f"{change.verb} {chosen.words}",
        back=back_to,
        back_text=back_text,
        expected=extent.get("expected_count"),
        resumes=True,
    )


def extent_of(form: Mapping[str, str]) -> dict[str, int]:
    """How far a write goes, as ops takes it: to what was counted, in number and up to which
    message; or, if that was chosen, to all of the selection. Raises ConfigError."""
    extent = form.get("extent", "counted")
    if extent not in ("counted", "all"):
        raise ConfigError(f"extent is counted or all, got {extent!r:.60}")
    if extent == "all":
        return {}
    found = {"expected_count": whole(form, "expected_count", 0, 0, 2**62)}
    if form.get("up_to"):
        found["up_to"] = id_of(form["up_to"])
    return found


def back(site: Site, request: Request, chosen: Selection) -> tuple[str, str]:
    """The page of what was chosen: its path, and its name."""
    numbers = chosen.numbers
    if numbers is not None:
        if len(numbers) == 1:
            return site.url(request, "message", msg_id=numbers[0]), f"Message {numbers[0]}"
        return site.url(request, "messages"), "Messages"
    return site.url(request, "messages", chosen.query), "Messages of this selection"


# --- A topic, an instance, a schedule, a lock.


def act_of(request: Request) -> OnThing:
    """The act of the path, for whom the viewer has the role; raises HTTPException."""
    found = ON_THINGS.get(request.path_params["kind"])
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


def forcing(act: OnThing, given: Any) -> dict[str, bool]:
    """The argument that allows more."""
    return {"force": True} if act.force and given.get("force") == "1" else {}


async def confirm_act(request: Request) -> Response:
    site, act = site_of(request), act_of(request)
    name = name_of(request.query_params.get("name", ""))
    forced = forcing(act, request.query_params)

    def call() -> Repaired:
        asked = forced | placed(site, act.elsewhere)
        found: Repaired = getattr(site.ops, act.ops)(act.about(name), **asked, dry_run=True)
        return found

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


async def do_act(request: Request) -> Response:
    site, act = site_of(request), act_of(request)
    form = forms.form_of(request)
    name, forced = name_of(form.get("name", "")), forcing(act, form)
    reason, call = reason_of(form), getattr(site.acting(request), act.ops)

    def work(on_progress: OnProgress) -> Repaired:
        more = {"progress": on_progress} if act.has_progress else {}
        asked = forced | placed(site, act.elsewhere) | more
        found: Repaired = call(act.about(name), **asked, reason=reason)
        return found

    return await begun(
        request,
        work,
        title=f"{act.verb} {act.what} {name}",
        back=site.url(request, act.page),
        back_text=act.page.capitalize(),
    )


routes = [
    Route("/change/{kind}", confirm, methods=["GET"], name="change"),
    Route("/change/{kind}", write, methods=["POST"]),
    Route("/act/{kind}", confirm_act, methods=["GET"], name="act"),
    Route("/act/{kind}", do_act, methods=["POST"]),
]
