"""Rerun, discard and cancel: a page that counts and tells first, then the write itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.errors import ConfigError
from msgworker.ops.results import Repaired, Tell
from msgworker.web import forms
from msgworker.web.forms import Selection, id_of, whole
from msgworker.web.pages.jobs import HELP, begun
from msgworker.web.sessions import Role
from msgworker.web.site import COUNTED, Refused, Site, or_refused, site_of

MOST_RATE = 100_000
MOST_REASON = 1000
COUNT_SECONDS = 0.1
"""The page of a dry run counts for so long, unless it is asked to count on."""


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of write. text: what it does. orders: what it can do about the order of an object:
    value, name and arguments of ops."""

    kind: str
    verb: str
    text: str
    orders: tuple[tuple[str, str, dict[str, bool]], ...] = ()


CHANGES = {
    one.kind: one
    for one in (
        Change(
            "rerun",
            "Rerun",
            "Failed and dead messages are tried again, with their tries set to 0: each has all its "
            "tries again. Items of a fan-out that are done stay done: only the others run.",
            (
                ("", "skip messages of which a later one has run already", {}),
                (
                    "successors",
                    "run them, and then in order the failed and dead messages behind them",
                    {"with_successors": True},
                ),
                (
                    "also_done",
                    "run them, and then in order all messages behind them, also those that are "
                    "done: their handlers run again",
                    {"with_successors": True, "also_done": True},
                ),
                (
                    "force",
                    "run them out of order (force), also done ones of this selection and those "
                    "whose unique key is taken",
                    {"force": True},
                ),
            ),
        ),
        Change(
            "discard",
            "Discard",
            "New, failed and dead messages are given up: dead, with the reason as their error. "
            "Their objects continue with what is behind them.",
        ),
        Change(
            "cancel",
            "Cancel",
            "New and failed messages are dead at once. Running ones are asked to end: their "
            "instance sees that within a heartbeat.",
        ),
    )
}


def change_of(request: Request) -> Change:
    """The kind of change of the path; raises HTTPException 404."""
    found = CHANGES.get(request.path_params["kind"])
    if found is None:
        raise HTTPException(404)
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
    site.need(request, Role.OPERATOR)
    chosen = chosen_of(request.query_params)
    order, options = options_of(change, request.query_params)
    counts_on = request.query_params.get("count") == "on"
    ops = site.ops if counts_on else site.ops.within(site.settings.deadline, counting=COUNT_SECONDS)
    call = getattr(ops, change.kind)
    would: Repaired | Refused
    dry = partial(call, **chosen.asked, **options, dry_run=True, count_limit=COUNTED)
    would = await site.count(or_refused, dry)
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
    site.need(request, Role.OPERATOR)
    form = forms.form_of(request)
    chosen = chosen_of(form)
    _, options = options_of(change, form)
    reason = form.get("reason", "").strip()
    if not 0 < len(reason) <= MOST_REASON:
        raise ConfigError(f"a reason of 1 to {MOST_REASON:,} characters is needed; it is audited")
    rate = whole(form, "rate", 0, 1, MOST_RATE) or None
    extent = extent_of(form)
    call = getattr(site.acting(request), change.kind)
    asked = chosen.asked | options | extent

    def work(tell: Tell) -> Repaired:
        found: Repaired = call(**asked, reason=reason, rate=rate, progress=tell)
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


routes = [
    Route("/change/{kind}", confirm, methods=["GET"], name="change"),
    Route("/change/{kind}", write, methods=["POST"]),
]
