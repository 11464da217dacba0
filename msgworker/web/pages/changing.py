"""Writes: a page that shows what one would do, by a dry run, then the write itself and how far it
is; and the form of an edit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from msgworker.config import as_instant, id_of
from msgworker.errors import ConfigError, PayloadError
from msgworker.message import State
from msgworker.ops.results import ADVICE, OnProgress, Repaired, Why
from msgworker.payload import decode_exactly, pretty
from msgworker.queries.messages import MessageInfo
from msgworker.web import forms, shown
from msgworker.web.access import Role
from msgworker.web.forms import Chosen, whole
from msgworker.web.site import COUNTED, Refused, Site, or_404, or_refused, page, site_of
from msgworker.web.threads import RunningWrite, Work
from msgworker.web.writes import CHANGES, EDIT, ON_THINGS, Change, OnThing

W = TypeVar("W", Change, OnThing)
MOST_RATE = 100_000
MOST_REASON = 1000
MOST_NAME = 255
COUNT_SECONDS = 0.1
"""How long the page of a dry run counts, unless the viewer asks for the rest."""


def reason_of(form: Mapping[str, str]) -> str:
    reason = form.get("reason", "").strip()
    if not 0 < len(reason) <= MOST_REASON:
        raise ConfigError(f"a reason of 1 to {MOST_REASON:,} characters is needed; it is audited")
    return reason


# --- Rerun, discard and cancel.


def kind_of(site: Site, request: Request, writes: Mapping[str, W]) -> W:
    """The write of the path, for which the viewer has the role; raises HTTPException."""
    found = writes.get(request.path_params["kind"])
    if found is None:
        raise HTTPException(404)
    site.need(request, found.role)
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


def chosen_of(given: Mapping[str, str]) -> Chosen:
    """Which messages; raises ConfigError if none are chosen."""
    chosen = Chosen.of(given)
    if not chosen.query:
        raise ConfigError("choose the messages first: on a page of messages, or by their group")
    return chosen.fixed


def ticked(query: QueryParams) -> dict[str, str]:
    """The query of a link, or of a list: with the ids of all boxes that are ticked there, or with
    its filters alone if those are. Raises ConfigError if none is."""
    ids = ",".join(filter(None, query.getlist("ids")))
    if query.get("all") == "1":
        ids = ""
    elif "ids" in query and not ids:
        raise ConfigError("tick messages in the list first, or all by its filters")
    return dict(query) | {"ids": ids}


@page("/change/edit")
async def edit_ticked(site: Site, request: Request) -> Response:
    """To the form of an edit."""
    site.need(request, EDIT.role)
    numbers = chosen_of(ticked(request.query_params)).numbers or []
    if len(numbers) != 1:
        raise ConfigError(
            "an edit is of one message, as it is shown what would change of it: tick exactly one; "
            "app.ops.edit in a loop edits many"
        )
    return RedirectResponse(site.url(request, "edit", msg_id=numbers[0]), 303)


@page("/change/{kind}", "change.html")
async def change(site: Site, request: Request) -> dict[str, Any]:
    change = kind_of(site, request, CHANGES)
    chosen = chosen_of(ticked(request.query_params))
    order, options = options_of(change, request.query_params)
    counts_on = request.query_params.get("count") == "on"
    ops = site.ops if counts_on else site.ops.within(site.options.deadline, counting=COUNT_SECONDS)
    asked = chosen.asked | options | {"dry_run": True, "count_limit": COUNTED}
    would: Repaired | Refused = await site.count(or_refused, partial(change.of(ops), **asked))
    return {
        "change": change,
        "chosen": chosen,
        "order": order,
        "would": would,
        "counts_on": counts_on,
        "further": chosen.query | {"order": order, "count": "on"},
        "most": COUNTED,
        "advice": help_of(change.kind),
        "most_reason": MOST_REASON,
        "most_rate": MOST_RATE,
        "back": back(site, request, chosen),
    }


@page("/change/{kind}", method="POST")
async def do_change(site: Site, request: Request) -> Response:
    change = kind_of(site, request, CHANGES)
    form = forms.form_of(request)
    chosen = chosen_of(form)
    _, options = options_of(change, form)
    reason = reason_of(form)
    rate = whole(form, "rate", 0, 1, MOST_RATE) or None
    extent = extent_of(form)
    expected = extent.get("expected_count")
    if chosen.ids and "with_successors" not in options:
        extent = {}  # no further one can come in; one that has changed since is left alone
    call = change.of(site.acting(request))
    asked = chosen.asked | options | extent | {"reason": reason, "rate": rate}
    back_to, back_text = back(site, request, chosen)
    return await begun(
        request,
        lambda on_progress: call(**asked, progress=on_progress),
        title=f"{change.verb} {chosen.words}",
        back=back_to,
        back_text=back_text,
        expected=expected,
        resumes=True,
    )


def extent_of(form: Mapping[str, str]) -> dict[str, int]:
    """How far a write goes, as ops takes it: to what was counted, in number and up to which
    message; or, if that was chosen, to all of the selection. Raises ConfigError."""
    extent = form.get("extent", "" if "up_to" in form else "counted")  # not all were counted
    if extent not in ("counted", "all"):
        raise ConfigError(
            f"choose how many: those that were counted, or all (extent is counted or all, got "
            f"{extent!r:.60})"
        )
    if extent == "all":
        return {}
    found = {"expected_count": whole(form, "expected_count", 0, 0, 2**62)}
    if form.get("up_to"):
        found["up_to"] = id_of(form["up_to"])
    return found


def back(site: Site, request: Request, chosen: Chosen) -> tuple[str, str]:
    numbers, filters = chosen.numbers or [], replace(chosen, ids="").query
    if len(numbers) == 1 and not filters:
        return site.url(request, "message", msg_id=numbers[0]), f"Message {numbers[0]}"
    text = "Messages of this selection" if filters else "Messages"
    return site.url(request, "messages", filters), text


# --- A topic, an instance, a schedule, a lock.


def act_of(site: Site, request: Request) -> OnThing:
    """The act of the path, see `kind_of`; none on a lock of another centre where there is none."""
    found = kind_of(site, request, ON_THINGS)
    if found.elsewhere and site.elsewhere is None:
        raise HTTPException(404)
    return found


def name_of(text: str) -> str:
    if not 0 < len(text) <= MOST_NAME:
        raise ConfigError(f"a name has 1 to {MOST_NAME} characters")
    return text


def forcing(act: OnThing, given: Any) -> dict[str, bool]:
    """The argument that allows more."""
    return {"force": True} if act.force and given.get("force") == "1" else {}


@page("/act/{kind}", "act.html")
async def act(site: Site, request: Request) -> dict[str, Any]:
    act = act_of(site, request)
    name = name_of(request.query_params.get("name", ""))
    forced = forcing(act, request.query_params)

    def call() -> Repaired:
        asked = forced | site.locks_at(act.elsewhere)
        return act.of(site.ops)(act.about(name), **asked, dry_run=True)

    would = await site.ask(or_refused, call)
    return {
        "act": act,
        "name": name,
        "forced": bool(forced),
        "would": would,
        "most_reason": MOST_REASON,
    }


@page("/act/{kind}", method="POST")
async def do_act(site: Site, request: Request) -> Response:
    act = act_of(site, request)
    form = forms.form_of(request)
    name, forced = name_of(form.get("name", "")), forcing(act, form)
    reason, call = reason_of(form), act.of(site.acting(request))

    def work(on_progress: OnProgress) -> Repaired:
        more = {"progress": on_progress} if act.counts else {}
        asked = forced | site.locks_at(act.elsewhere) | more
        return call(act.about(name), **asked, reason=reason)

    return await begun(
        request,
        work,
        title=f"{act.verb} {act.what} {name}",
        back=site.url(request, act.page),
        back_text=act.page.capitalize(),
    )


# --- Edit one message: its values, what would change, then the change.

MOST_PAYLOAD = 20_000
"""Characters of a payload in a form; a body has 64 kB."""
_FIELDS = ("topic", "priority", "available_at", "payload")


@page("/edit/{msg_id}", "edit.html")
async def edit(site: Site, request: Request) -> dict[str, Any]:
    info, fields = await edited(site, request)
    return edit_page(site, info, fields, values_of(site, info), None)


@page("/edit/{msg_id}", "edit.html", method="POST")
async def save_edit(site: Site, request: Request) -> dict[str, Any] | Response:
    """What would change; or, with `save`, the change."""
    form = forms.form_of(request)
    info, fields = await edited(site, request)
    given = {name: form.get(name, "").replace("\r\n", "\n") for name in fields}
    before = values_of(site, info)
    if not (differ := {name: text for name, text in given.items() if text != before[name]}):
        return edit_page(site, info, fields, given, Refused("there is nothing to change"))
    wanted = wanted_of(differ, info)
    if form.get("save") != "1":
        call = partial(site.ops.edit, info.msg_id, **wanted, dry_run=True)
        would: Repaired | Refused = await site.ask(or_refused, call)
        return edit_page(site, info, fields, given, would)
    reason = reason_of(form)
    save = partial(
        site.acting(request).edit, info.msg_id, **wanted, seen=form.get("seen"), reason=reason
    )
    return await begun(
        request,
        lambda _: save(),
        title=f"Edit message {info.msg_id}",
        back=site.url(request, "message", msg_id=info.msg_id),
        back_text=f"Message {info.msg_id}",
    )


async def edited(site: Site, request: Request) -> tuple[MessageInfo, tuple[str, ...]]:
    """The message of the path, for whom the viewer has the role, and what of it can be edited;
    raises HTTPException."""
    site.need(request, EDIT.role)
    msg_id = id_of(request.path_params["msg_id"])
    missing = f"there is no message {msg_id} in {site.app.table.name}"
    info = or_404(await site.ask(site.ops.show, msg_id, items=0), missing)
    tables = await site.ask(lambda: site.app.tables)
    left_out = ("available_at",) if info.status is State.DEAD else ()
    return info, tuple(name for name in _FIELDS if tables.has(name) and name not in left_out)


def values_of(site: Site, info: MessageInfo) -> dict[str, str]:
    at = info.available_at
    return {
        "topic": info.topic or "",
        "priority": "" if info.priority is None else str(info.priority),
        "available_at": "" if at is None else at.isoformat(),
        "payload": "" if why_empty(site, info) else pretty(info.payload or ""),
    }


def why_empty(site: Site, info: MessageInfo) -> str:
    """Why a payload is not put into the form: what is saved would not be what it was."""
    text, redact = info.payload, site.options.redact
    if not text:
        return ""
    if info.payload_cut:
        return "as it is too long"
    try:
        value = decode_exactly(text)
    except PayloadError:
        return "as it is no JSON"
    return "as parts of it are hidden" if redact(value) != value else ""


def wanted_of(given: Mapping[str, str], info: MessageInfo) -> dict[str, Any]:
    """The arguments of ops, of fields that differ from the message; raises ConfigError or
    PayloadError."""
    found: dict[str, Any] = {}
    if given.get("topic"):
        found["topic"] = given["topic"]
    if given.get("priority", "").strip():
        found["priority"] = whole(given, "priority", 0, 0, 2**31 - 1)
    if "available_at" in given:
        found["available_at"] = _at(given["available_at"].strip())
    text = given.get("payload", "").strip()
    if len(text) > MOST_PAYLOAD:
        raise ConfigError(f"a form takes {MOST_PAYLOAD:,} characters of a payload; use the API")
    if text:
        if shown.HIDDEN in text and shown.HIDDEN not in (info.payload or ""):
            raise ConfigError(
                f"the payload has {shown.HIDDEN} where a part was hidden: write it out"
            )
        try:
            found["payload"] = decode_exactly(text)
        except PayloadError as error:
            raise ConfigError(str(error)) from None
    return found


def _at(text: str) -> datetime | None:
    if not text:
        return None
    if (found := as_instant(text, "available_at")) is None:
        raise ConfigError(f"available_at is such as 2026-12-01T08:00Z, got {text!r:.60}")
    return found


def edit_page(
    site: Site,
    info: MessageInfo,
    fields: tuple[str, ...],
    given: dict[str, str],
    would: Repaired | Refused | None,
) -> dict[str, Any]:
    changes = would.changes if isinstance(would, Repaired) else ()
    return {
        "act": EDIT,
        "info": info,
        "fields": fields,
        "given": given,
        "would": would,
        "shown": shown.changes(changes, site.options.redact),
        "why_empty": why_empty(site, info),
        "most_payload": MOST_PAYLOAD,
        "most_reason": MOST_REASON,
    }


# --- A write that was begun: its progress, its result, and a button that ends it.

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
    Why.UNDATED: "`msgworker release --nobody --any-age` gives it back, if no consumer works on it",
}
"""The advice for each reason, in the words of the pages."""
_OF_ORDER = (Why.DONE, Why.RAN_LATER, Why.KEY_TAKEN)


def help_of(kind: str) -> dict[Why, str]:
    """The advice of a write: only a rerun has choices about the order."""
    return {why: text for why, text in HELP.items() if kind == "rerun" or why not in _OF_ORDER}


async def begun(request: Request, work: Work, **about: Any) -> Response:
    site = site_of(request)
    write = site.writes.start(work, by=site.viewer(request).name, **about)
    for _ in range(int(SOON_SECONDS / LOOK_SECONDS)):
        if write.over.is_set():
            break
        await asyncio.sleep(LOOK_SECONDS)
    site.forget()
    return RedirectResponse(
        site.url(request, "write", {"op": write.op_id}, write_id=write.write_id), 303
    )


def running_write(site: Site, request: Request) -> RunningWrite | None:
    return site.writes.get(request.path_params["write_id"])


@page("/writes/{write_id}", "write.html")
async def write(site: Site, request: Request) -> dict[str, Any] | Response:
    found = running_write(site, request)
    if found is None:
        op_id = whole(request.query_params, "op", 0, 0, 2**62) or None
        return site.render(request, "write_gone.html", 404, op_id=op_id)
    result, over = found.result, found.over.is_set()
    advice = help_of(result.kind if result else "")
    return {"write": found, "result": result, "advice": advice, "over": over}


@page("/writes/{write_id}/end", method="POST")
async def write_end(site: Site, request: Request) -> Response:
    site.need(request, Role.OPERATOR)
    missing = "this process does not know that write; the audit shows it"
    found = or_404(running_write(site, request), missing)
    found.end()
    return RedirectResponse(site.url(request, "write", write_id=found.write_id), 303)
