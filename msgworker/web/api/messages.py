"""Messages: lists, one with its tries and items, sending, and writes on one or on many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from msgworker.ops.results import Progress, Repaired, Sent
from msgworker.queries.explain import Explanation
from msgworker.queries.lanes import LanePlace
from msgworker.queries.messages import MessageInfo
from msgworker.store.items import ItemInfo
from msgworker.store.tries import Try
from msgworker.web import shown
from msgworker.web.access import Role
from msgworker.web.api import calling
from msgworker.web.api.calling import ApiCall, Page, Wrong, endpoint, page_of
from msgworker.web.api.operations import lasting
from msgworker.web.site import COUNTED, Site, or_404
from msgworker.web.writes import CHANGES, EDIT, Change

MISSING = "there is no message {}; it may have been purged"


class Filter(calling.Paging):
    """Filters that all hold; fingerprint: of a group of failures. acknowledged: of dead ones, "1"
    those that an operator has acknowledged, discarded or cancelled, "0" the others. order: by
    msg_id."""

    status: calling.Status | None = None
    topic: calling.Topic | None = None
    object_id: calling.FilterObject | None = None
    error: calling.ErrorPart | None = None
    since: calling.Instant | None = None
    fingerprint: calling.Fingerprint | None = None
    job: calling.JobIdText | None = None
    acknowledged: calling.Flag | None = None
    order: Literal["newest", "oldest"] = "newest"


class Shown(calling.ApiInput):
    """payload: "1" shows payloads, and values of items, without what is hidden by the settings."""

    payload: calling.Flag = "0"


class Items(calling.Paging, Shown):
    """state: only those that have ended so."""

    state: Literal["done", "failed"] | None = None


class Send(calling.ApiInput):
    """A message to send; see `App.send`."""

    topic: calling.NewTopic
    payload: Any = None
    object_id: calling.ObjectId | None = None
    delay: Annotated[float, Field(ge=0, le=366 * 86_400, allow_inf_nan=False)] | None = None
    at: calling.Instant | None = None
    priority: Annotated[int, Field(strict=True, ge=0, le=32_767)] | None = None
    unique_key: calling.Key | None = None
    unique: Literal["open", "kept"] = "open"
    on_duplicate: Literal["skip", "raise", "replace"] = "skip"
    job: calling.JobId | None = None
    reason: calling.Reason | None = None


class Again(calling.Why):
    """force, with_successors, also_done: as in `app.ops.rerun`."""

    force: bool = Field(default=False, strict=True)
    with_successors: bool = Field(default=False, strict=True)
    also_done: bool = Field(default=False, strict=True)


class Edit(calling.Why):
    """New values, as in `app.ops.edit`; what is left out stays. available_at: null = at once. seen:
    of a dry run; the message must still be so."""

    topic: calling.NewTopic | None = None
    payload: Any = None
    available_at: calling.Instant | None = None
    priority: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] | None = None
    seen: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None


class Many(calling.Why):
    """A selection, with the number that a dry run said would be changed."""

    filter: calling.Selection
    expected_count: calling.Count | None = None
    rate: Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False)] | None = None


class ManyAgain(Many, Again):
    """The same, to be tried again."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A message with its tries and its place in its object. payload: None unless asked for."""

    message: MessageInfo
    place: LanePlace | None


# ---------------------------------------------------------------- reading


def _found(site: Site, given: dict[str, Any]) -> Any:
    newest = given.pop("order") == "newest"
    known = given.pop("acknowledged")
    given["acknowledged"] = None if known is None else known == "1"
    return site.ops.messages(newest=newest, **given)


@endpoint("GET /messages", MessageInfo, query=Filter, page=True)
async def list_messages(call: ApiCall) -> Page:
    """Messages by filter, without payloads."""
    return Page(await call.site.ask(_found, call.site, call.query.model_dump()))


@endpoint("GET /messages/{msg_id}", Whole, query=Shown)
async def get_message(call: ApiCall) -> Whole:
    """One message, with its failed tries and what waits behind it."""
    found = await _message(call)
    place = await call.site.ask(call.ops.place, found.msg_id)
    return Whole(_hidden(call, found), place)


@endpoint("GET /messages/{msg_id}/attempts", Try, query=calling.ListInput, page=True)
async def list_attempts(call: ApiCall) -> Page:
    """The failed tries of a message, oldest first, with their tracebacks."""
    found = await _message(call, items=0)
    return page_of(call, found.tries, lambda one: one.number)


@endpoint("GET /messages/{msg_id}/items", ItemInfo, query=Items, page=True)
async def list_items(call: ApiCall) -> Page:
    """The items of a message's fan-outs that have ended, by key."""
    msg_id = call.number("msg_id", "message")
    given = call.query.model_dump(exclude={"payload"})
    found = await call.site.ask(call.ops.items, msg_id, **given)
    return Page(found, [_hidden_item(call, one) for one in found])


@endpoint("GET /messages/{msg_id}/explain", Explanation)
async def explain_message(call: ApiCall) -> Explanation:
    """Why a message is not running."""
    msg_id = call.number("msg_id", "message")
    found = await call.site.ask(call.ops.explain, msg_id)
    return _without_payloads(or_404(found, MISSING.format(msg_id)))


async def _message(call: ApiCall, **more: Any) -> MessageInfo:
    """The message of the path, see `ops.show`; raises HTTPException."""
    msg_id = call.number("msg_id", "message")
    found = await call.site.ask(call.ops.show, msg_id, **more)
    return or_404(found, MISSING.format(msg_id))


def _without_payloads(found: Explanation) -> Explanation:
    behind = None if found.behind is None else _without_payloads(found.behind)
    return replace(found, message=replace(found.message, payload=None), behind=behind)


def _hidden(call: ApiCall, info: MessageInfo) -> MessageInfo:
    """With what may be seen of the payload, if that is asked for."""
    listed = info.items and replace(
        info.items, listed=tuple(_hidden_item(call, one) for one in info.items.listed)
    )
    text, is_cut = None, info.payload_cut
    if call.query.payload == "1" and info.payload is not None:
        text = shown.payload(info.payload, call.site.options.redact, is_part=is_cut)
        is_cut |= len(text) > calling.MOST_TEXT
    return replace(info, payload=text, payload_cut=is_cut, items=listed)


def _hidden_item(call: ApiCall, one: ItemInfo) -> ItemInfo:
    if call.query.payload != "1" or one.value is None:
        return replace(one, value=None)
    return replace(one, value=shown.payload(one.value, call.site.options.redact))


# ---------------------------------------------------------------- writing


def _sent(call: ApiCall) -> Sent:
    body = call.body
    options = body.model_dump(exclude={"topic", "payload"})
    if body.object_id is not None:
        options["object_id"] = call.ops.object_id(body.object_id)
    return call.acting.send(body.topic, body.payload, **options)


@endpoint("POST /messages", Sent, role=Role.OPERATOR, body=Send)
async def send_message(call: ApiCall) -> Sent:
    """Send one message; the audit has who did, in the same transaction."""
    return await call.site.ask(_sent, call)


async def _on_one(call: ApiCall, change: Change) -> Repaired | Progress:
    msg_id = (await _message(call, items=0)).msg_id
    given = call.body.model_dump()
    if given["dry_run"]:
        return await _counted(call, change, ids=[msg_id], **given)
    return await call.site.ask(change.of(call.acting), [msg_id], **given)


async def _on_many(call: ApiCall, change: Change) -> Repaired | Progress:
    given = call.body.model_dump(exclude={"filter"})
    chosen = call.body.filter.model_dump()
    if all(value is None for name, value in chosen.items() if name != "up_to"):
        fault = "names no message: give ids or at least one filter"
        raise Wrong([{"field": "filter", "in": "body", "problem": fault}])
    if given["dry_run"]:
        return await _counted(call, change, **chosen, **given)
    write = change.of(call.acting)
    title = f"{change.kind} of a selection, by the API"
    return await lasting(
        call,
        title,
        lambda on_progress: write(**chosen, **given, progress=on_progress),
        resumes=True,
    )


async def _counted(call: ApiCall, change: Change, **asked: Any) -> Repaired:
    """A dry run, which counts COUNTED messages at most."""
    return await call.site.count(change.of(call.ops), **asked, count_limit=COUNTED)


@endpoint("POST /messages/{msg_id}/edit", Repaired, role=EDIT.role, query=Shown, body=Edit)
async def edit_message(call: ApiCall) -> Repaired:
    """Correct a message that waits or is dead; see `app.ops.edit`."""
    msg_id = (await _message(call, items=0)).msg_id
    given = call.body.model_dump(exclude_unset=True)
    ops = call.ops if call.body.dry_run else call.acting
    done = await call.site.ask(ops.edit, msg_id, **given)
    asked = call.query.payload == "1"
    seen = shown.changes(done.changes, call.site.options.redact, payloads=asked)
    return replace(done, changes=seen)


def _add(change: Change, many: bool) -> None:
    """The endpoint of a change, on one message or on many."""
    word, again = change.word, bool(change.orders)
    body: type[calling.ApiInput] = (
        (ManyAgain if again else Many) if many else (Again if again else calling.Why)
    )

    @endpoint(
        f"POST /{word}" if many else f"POST /messages/{{msg_id}}/{word}",
        Repaired,
        name=f"{word}_messages" if many else f"{word}_message",
        says=f"{change.verb} {'many messages' if many else 'one message'}. {change.text}",
        role=change.role,
        body=body,
        tag="messages",
    )
    async def handler(call: ApiCall) -> Repaired | Progress:
        return await (_on_many if many else _on_one)(call, change)


for _many in (False, True):
    for _change in CHANGES.values():
        _add(_change, _many)
