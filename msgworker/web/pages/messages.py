"""Messages: the list and one of them, groups of those that failed, and lanes of those that wait."""

from __future__ import annotations

import asyncio
import csv
import io
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from msgworker.config import id_of
from msgworker.errors import ConfigError
from msgworker.message import State, topic_of
from msgworker.queries.counts import Overview
from msgworker.queries.explain import Explanation, Reason
from msgworker.queries.failures import READ, Failures
from msgworker.queries.lanes import BLOCKED, LaneInfo
from msgworker.queries.messages import MessageInfo, acts
from msgworker.store.audit import AuditEntry
from msgworker.store.bounded import Capped, Found
from msgworker.store.items import ItemState
from msgworker.store.tries import Kind
from msgworker.web import shown
from msgworker.web.access import Role
from msgworker.web.forms import SPANS, Chosen
from msgworker.web.site import Refused, Site, or_404, or_missing, page, paged
from msgworker.web.writes import CHANGES, EDIT, Write

ROWS = 50
MOST_TOPICS = 200
"""Suggestions in a form."""
MOST_FIND = 200


@page("/messages")
async def messages(site: Site, request: Request) -> Response:
    if text := request.query_params.get("find", "").strip():
        return await _find(request, site, text)
    return await site.live(request, "messages.html", lambda: _listed(site, request), live=True)


async def _listed(site: Site, request: Request) -> dict[str, Any]:
    query = request.query_params
    chosen, oldest = Chosen.of(query), query.get("order") == "oldest"
    if chosen.ids:
        raise ConfigError("a list is chosen by filters; /messages/ID shows a message")
    after = query.get("after") or None
    found, overview = await asyncio.gather(
        site.ask(site.ops.messages, **chosen.filters, newest=not oldest, limit=ROWS, after=after),
        site.overview(),
    )
    order = {"order": "oldest"} if oldest else {}
    return {
        "chosen": chosen,
        "rows": found,
        "rail": list(rail(chosen, overview, order)),
        "chips": [(label, value, rest | order) for label, value, rest in chosen.chips()],
        "topics": [one.topic for one in overview.topics][:MOST_TOPICS],
        "states": list(State),
        "spans": list(SPANS),
        "oldest": oldest,
        **paged(chosen.query | order, after, found.next_after),
        "turned": chosen.query | ({} if oldest else {"order": "oldest"}),
        "picks": picks(chosen) if site.may(request, Role.OPERATOR) else (),
        "matching": matching(chosen, found, overview, is_first=not after),
    }


def picks(chosen: Chosen) -> list[Write]:
    """What can be done with the messages of a list that are ticked."""
    away = "acknowledge" if chosen.status not in ("", State.DEAD) else ""
    return [one for one in (*CHANGES.values(), EDIT) if one.kind != away]


def matching(
    chosen: Chosen, found: Found[MessageInfo], overview: Overview, *, is_first: bool
) -> Capped:
    """How many messages the filters select, as far as that is known without counting them."""
    if is_first and found.next_after is None and found.complete:
        return Capped(len(found))
    if chosen.state is not None and set(chosen.query) == {"status"}:
        return overview.count(chosen.state)
    return Capped(len(found), more=True)


def rail(
    chosen: Chosen, overview: Overview, order: dict[str, str]
) -> Iterator[tuple[str, str, dict[str, str], bool]]:
    """The states: name, count, query and whether it is shown. Counts are of the whole table."""
    others = {name: text for name, text in chosen.query.items() if name != "status"}
    yield "all", "", others | order, not chosen.status
    for state in State:
        if state is State.UNKNOWN and not overview.count(state).count and chosen.status != state:
            continue
        kept = others
        if state not in (State.FAILED, State.DEAD):  # others are in no group
            kept = {name: text for name, text in others.items() if name != "group"}
        if state is not State.DEAD:
            kept = {name: text for name, text in kept.items() if name != "acknowledged"}
        query = kept | {"status": state.value} | order
        yield state.value, str(overview.count(state)), query, chosen.status == state


async def _find(request: Request, site: Site, text: str) -> Response:
    """To the message of this id, else to the messages of the object of this name."""
    if len(text) > MOST_FIND:
        raise ConfigError(f"find takes an id or an object of at most {MOST_FIND} characters")
    try:
        found = await site.ask(site.ops.show, id_of(text), items=0)
    except ConfigError:
        found = None
    if found is not None:
        return RedirectResponse(site.url(request, "message", msg_id=found.msg_id), 303)
    query: dict[str, Any] = {"object": text}
    return RedirectResponse(site.url(request, "messages", query), 303)


# --- One message: its state, its tries, its items, what it waits for and what waits for it.

MOST_TRIES = 20
"""The last of them that the page shows, with their tracebacks."""
ITEMS = 50
AUDIT = 50
MOST_TRACE = 20_000
DEEPEST = 20
"""Messages that wait for one another, in an explanation."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a message, or will. word: its kind, also its colour."""

    at: datetime
    word: str
    text: str = ""
    coming: bool = False


def timeline(info: MessageInfo, audit: Sequence[AuditEntry] = ()) -> list[Moment]:
    """What is known of a message's life, in its order; what is to come is last."""
    past = sorted(_past(info, audit), key=lambda one: one.at)
    waits = info.status in (State.NEW, State.FAILED)
    if waits and info.available_at is not None:
        word = "retry" if info.word == State.FAILED else "due"
        past.append(Moment(info.available_at, word, coming=True))
    return past


def _past(info: MessageInfo, audit: Sequence[AuditEntry]) -> Iterator[Moment]:
    if info.created_at is not None:
        yield Moment(info.created_at, "inserted")
    for one in info.tries:
        if one.started_at is not None:
            word = "claimed" if one.kind == Kind.CRASH else "started"
            yield Moment(one.started_at, word, one.instance or "")
        yield Moment(one.ended_at, one.kind, f"try {one.number}")
    if info.status is State.PROCESSING and info.claimed_at is not None:
        yield Moment(info.claimed_at, "claimed", info.claimed_by or "")
    for entry in audit:
        yield Moment(entry.changed_at or entry.started_at, entry.kind, f"by {entry.actor}")
    if info.cancel is not None:
        yield Moment(info.cancel.requested_at, "cancel requested", f"by {info.cancel.actor}")
    if info.finished_at is not None and info.status in (State.DONE, State.DEAD):
        last = max((one.ended_at for one in info.tries), default=info.finished_at)
        yield Moment(max(info.finished_at, last), info.status.value)  # by two clocks


def reasons(found: Explanation | None) -> list[Explanation]:
    """The explanation, then that of the message it waits for, and so on."""
    steps: list[Explanation] = []
    while found is not None and len(steps) < DEEPEST:
        steps.append(found)
        found = found.behind
    return steps


@page("/messages/{msg_id}", "message.html")
async def message(site: Site, request: Request) -> dict[str, Any]:
    ops = site.ops
    msg_id = id_of(request.path_params["msg_id"])
    missing = f"there is no message {msg_id} in {site.app.table.name}"
    info = or_404(await site.ask(ops.show, msg_id, items=ITEMS), missing)
    tables = await site.ask(lambda: site.app.tables)
    audit = await site.ask(or_missing, ops.audit, msg_id, limit=AUDIT)
    asked = request.query_params.get("payload")
    wanted = asked == "1" or (asked is None and site.may(request, Role.OPERATOR))
    entries = [] if isinstance(audit, Refused) else audit
    redact = site.options.redact
    seen = shown.payload(info.payload, redact, is_part=info.payload_cut) if wanted else None
    edits = [(one, shown.changes(one.changes, redact, payloads=wanted)) for one in entries]
    return {
        "info": info,
        "edits": [(one, found) for one, found in edits if found],
        "place": await site.ask(ops.place, msg_id),
        "reasons": reasons(await site.ask(ops.explain, msg_id)),
        "events": timeline(info, entries),
        "audit": audit,
        "max_tries": tables.spec.max_tries,
        "most_tries": MOST_TRIES,
        "acts": acts(info, tables),
        "payload": seen,
        "part_shown": info.payload_cut and not redact,
        "most_trace": MOST_TRACE,
    }


@page("/messages/{msg_id}/items", "items.html")
async def items(site: Site, request: Request) -> dict[str, Any]:
    query = request.query_params
    msg_id = id_of(request.path_params["msg_id"])
    state: Any = query.get("state") or None  # ops.items refuses other words
    after = query.get("after")
    found = await site.ask(site.ops.items, msg_id, state=state, limit=ITEMS, after=after or None)
    chosen = {"state": state} if state else {}
    return {
        "msg_id": msg_id,
        "rows": found,
        "state": state,
        "states": [one.value for one in ItemState],
        **paged(chosen, after, found.next_after),
    }


# --- Failures: messages that failed for the same reason, as groups; also as CSV.

GROUPS = 100
CSV_ROWS = 500
COLUMNS = (
    *("fingerprint", "error", "dead", "failing", "topics", "waiting_objects"),
    *("first_seen", "last_seen", "sample_id", "varies", "example"),
)
FORMULA = "=+-@"
"""Spreadsheets read a cell that begins so as a formula, full-width signs and spaces before it
too."""


async def _groups(site: Site, request: Request, rows: int) -> tuple[Chosen, Found[Failures]]:
    given = {k: v for k, v in request.query_params.items() if k in ("topic", "since", "job")}
    chosen = Chosen.of(given)
    asked = {name: chosen.asked[name] for name in ("topic", "since", "job") if name in chosen.asked}
    return chosen, await site.ask(site.ops.failures, **asked, limit=rows)


@page("/failures", "failures.html", live=True)
async def failures(site: Site, request: Request) -> dict[str, Any]:
    (chosen, found), overview = await asyncio.gather(
        _groups(site, request, GROUPS), site.overview()
    )
    return {
        "chosen": chosen,
        "rows": found,
        "topics": [one.topic for one in overview.topics][:CSV_ROWS],
        "spans": list(SPANS),
        "limits": {k: v for k, v in chosen.fixed.query.items() if k in ("topic", "job")},
    }


@page("/failures.csv")
async def failures_csv(site: Site, request: Request) -> Response:
    _, found = await _groups(site, request, CSV_ROWS)
    headers = {"content-disposition": 'attachment; filename="failures.csv"'}
    lacks = (
        f"Not all failures are here: at most the {CSV_ROWS} largest groups of the newest {READ:,} "
        "failed messages."
    )
    text = csv_of(found, site.without, "" if found.complete else lacks).encode(
        "utf-8", "backslashreplace"
    )
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def csv_of(groups: Iterable[Failures], scrub: Any = str, more: str = "") -> str:
    """The groups as CSV (RFC 4180); no cell is read as a formula. more: what the file lacks, in a
    last row, "" = nothing."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for one in groups:
        writer.writerow([cell(scrub(_text(getattr(one, name)))) for name in COLUMNS])
    if more:
        writer.writerow([more, *[""] * (len(COLUMNS) - 1)])
    return out.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def cell(text: str) -> str:
    """A text that a spreadsheet shows as it is; numbers stay numbers."""
    bare = text.removeprefix("-")
    if bare.isascii() and bare.isdecimal():
        return text
    first = unicodedata.normalize("NFKC", text).lstrip()[:1]
    odd = text[:1].isspace() or not text[:1].isprintable()
    return f"'{text}" if text and (odd or not first or first in FORMULA) else text


# --- Lanes: objects with what runs or failed at their head, and what waits behind it.

LANES = 100
WORDS: dict[str, str] = {
    State.FAILED: "retry",
    State.PROCESSING: "processing",
    State.NEW: "waiting",
}
HELPS = {
    Reason.NO_HANDLER: ("start an instance with one", "instances"),
    Reason.NOBODY_LOOKS: ("start an instance that does", "instances"),
    Reason.NO_INSTANCE: ("see the instances", "instances"),
    Reason.DEAD: ("rerun or discard it", "message"),
    Reason.UNKNOWN_STATUS: ("see the message", "message"),
    Reason.RUNNING_FOREIGN: ("see who has it", "instances"),
    Reason.RUNNING_DEAD: ("release it", "instances"),
    Reason.REFUSED: ("see who refuses it", "instances"),
    Reason.PAUSED: ("resume the topic", "topic"),
    Reason.JOB_PAUSED: ("resume the job", "job"),
    Reason.LIMITED: ("see the limits", "topic"),
}
"""What to do about a head that is blocked, and the page where."""


def shown_lane(one: LaneInfo) -> dict[str, Any]:
    """What the table of lanes shows of one: word, kind: its state; help: what to do, or None."""
    is_blocked, state = one.reason in BLOCKED, one.head.word
    word = "blocked" if is_blocked else WORDS.get(state, state)
    text, route = HELPS.get(one.reason, ("", ""))
    ids: dict[str, dict[str, Any]] = {
        "message": {"msg_id": one.head.msg_id},
        "job": {"job_id": one.head.job_id},
        "topic": {"topic": topic_of(one.head.topic)},
    }
    return {
        "info": one,
        "word": word,
        "kind": "dead" if is_blocked else state,
        "why": one.why if route and one.reason is not Reason.DEAD else "",
        "help": (text, route, ids.get(route, {})) if route else None,
    }


@page("/lanes", "lanes.html", live=True)
async def lanes(site: Site, request: Request) -> dict[str, Any]:
    query = request.query_params
    ops, by_object = site.ops, query.get("by") == "object"
    after = query.get("after") or None
    if by_object:
        found = await site.ask(ops.lanes, by="object", limit=LANES, after=after)
    else:
        found = await site.look(ops.lanes, by="blocked", limit=LANES)
    return {
        "rows": [shown_lane(one) for one in found],
        "complete": found.complete,
        "by_object": by_object,
        **paged({"by": "object"}, after, found.next_after if by_object else None),
    }


# --- Jobs: how far each is, with a bar.

JOBS = 50


@page("/jobs", "jobs.html", live=True)
async def jobs(site: Site, request: Request) -> dict[str, Any]:
    query = request.query_params
    after = query.get("after", "")
    is_open = query.get("state") == "open" or None
    last = id_of(after) if after else None
    found = await site.ask(site.ops.jobs, is_open=is_open, limit=JOBS, after=last)
    chosen = {"state": "open"} if is_open else {}
    return {"rows": found, "is_open": is_open, **paged(chosen, after, found.next_after)}


@page("/jobs/{job_id}", "job.html", live=True)
async def job(site: Site, request: Request) -> dict[str, Any]:
    job_id = id_of(request.path_params["job_id"])
    found = await site.ask(site.ops.job, job_id) if job_id > 0 else None
    return {
        "job": or_404(found, f"there is no job {job_id}"),
        "blocks": site.app.table.on_dead == "block",
    }
