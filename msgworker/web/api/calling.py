"""From a request to a call, and from a value to an answer: the same for all resources."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlencode

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker import errors
from msgworker.config import as_id
from msgworker.message import State
from msgworker.ops import Ops
from msgworker.ops.results import Progress, Repaired
from msgworker.payload import decode, decode_exactly, is_text, shown
from msgworker.store.audit import Operation
from msgworker.store.bounded import LEAST, MOST, Found, cursor_place, cursor_text
from msgworker.web.access import Role, client_of
from msgworker.web.shown import STATUS
from msgworker.web.site import Site, site_of

# --- Values of ops as JSON.

MOST_TEXT = 20_000


def plain(value: Any, without: Callable[[str], str] = str) -> Any:
    """What `json.dumps` takes; of a text of more than MOST_TEXT characters these and "…". without:
    removes secrets from a text."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: plain(getattr(value, one.name), without) for one in fields}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return without(str(value)[:MOST_TEXT]) + "…" * (len(value) > MOST_TEXT)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one, without) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, without) for one in value]
    return without(shown(value, MOST_TEXT))


def dumped(value: Any) -> bytes:
    """JSON in ASCII: halves of surrogate pairs, from rows that are not UTF-8, are escapes."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


# --- What requests may contain: types for parameters and bodies, each with its bounds.

_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class ApiInput(BaseModel):
    """Parameters or a body: an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        if (found := as_id(value)) is None:
            raise ValueError("must be a whole number of at most 64 bits")
        return found
    return value


def _instant(value: Any) -> Any:
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        raise ValueError("must be an instant such as 2026-11-23T20:00:00Z, with its time zone")
    found = datetime.fromisoformat(value.upper())
    try:
        return found.astimezone(UTC)
    except OverflowError:  # before the year 1 or after 9999 in UTC
        return (
            datetime.min.replace(tzinfo=UTC)
            if found.year == 1
            else datetime.max.replace(tzinfo=UTC)
        )


def _storable(value: str) -> str:
    if not is_text(value):
        raise ValueError("holds half of a surrogate pair")
    return value


def _words(most: int, least: int = 1) -> Any:
    """A text of `least` to `most` characters without NUL, which databases do not store."""
    return Field(min_length=least, max_length=most, pattern=r"^[^\x00]*$")


_STORABLE = AfterValidator(_storable)
Instant = Annotated[datetime, BeforeValidator(_instant, json_schema_input_type=datetime)]
Flag = Literal["0", "1"]
Id = Annotated[int, Field(strict=True, ge=LEAST, le=MOST)]
IdText = Annotated[int, Field(ge=LEAST, le=MOST), BeforeValidator(_whole)]
Count = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Status = Literal["new", "processing", "done", "failed", "dead", "unknown"]
Topic = Annotated[str, _words(1000, least=0), _STORABLE]
NewTopic = Annotated[str, _words(100), _STORABLE]
ObjectId = Annotated[str, _words(190), _STORABLE]
FilterObject = Annotated[str, _words(190, least=0), _STORABLE]
Key = Annotated[str, _words(190), _STORABLE]
JobId = Annotated[int, Field(strict=True, ge=1, le=MOST)]
JobIdText = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_whole)]
Reason = Annotated[str, _words(1000), _STORABLE]
ErrorPart = Annotated[str, _words(2000), _STORABLE]
Kind = Annotated[str, _words(20), _STORABLE]
Actor = Annotated[str, _words(200), _STORABLE]
Fingerprint = Annotated[str, _words(64), _STORABLE]
Cursor = Annotated[str, _words(2000), _STORABLE]
Limit = Annotated[int, Field(ge=1, le=200), BeforeValidator(_whole)]
assert set(Status.__args__) == {state.value for state in State}  # type: ignore[attr-defined]


class Nothing(ApiInput):
    """No parameters."""


class Paging(ApiInput):
    """limit: rows of a page. after: the cursor in `next` of the page before."""

    limit: Limit = 50
    after: Cursor | None = None


class ListInput(Paging):
    """limit: rows of a page, 200 if not said. after: the cursor in `next` of the page before."""

    limit: Limit = 200


class Selection(ApiInput):
    """Messages by ids, or by filters that all hold; at least one of them. up_to: the highest
    msg_id, of those that a dry run counted."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    ids: list[Id] | None = Field(default=None, min_length=1, max_length=1000)
    status: Status | None = None
    topic: Topic | None = None
    object_id: FilterObject | None = None
    error: ErrorPart | None = None
    since: Instant | None = None
    fingerprint: Fingerprint | None = None
    job: JobId | None = None
    up_to: Id | None = None
    acknowledged: Annotated[bool, Field(strict=True)] | None = None


class Why(ApiInput):
    """reason: kept in the audit. dry_run: only count."""

    reason: Reason | None = None
    dry_run: bool = Field(default=False, strict=True)


# --- Calls and answers.

KEY_HEADER = "idempotency-key"
MOST_KEY = 255
_IN_KEY = re.compile("[!-~]*")


@dataclass(frozen=True)
class ApiCall:
    """One request: its checked parameters and body, and who asks. key: its Idempotency-Key as the
    database has it, and a digest of what it asks for."""

    site: Site
    request: Request
    query: Any
    body: Any
    key: tuple[str, str] | None = None

    @property
    def ops(self) -> Ops:
        """For reads."""
        return self.site.ops

    @property
    def acting(self) -> Ops:
        """For writes: the audit has who asked, and from where."""
        viewer = self.site.viewer(self.request)
        source = f"api {client_of(self.request)} ({viewer.by})"
        key, request = self.key or (None, None)
        return self.site.writing(actor=viewer.name, source=source, key=key, request=request)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def number(self, name: str, what: str) -> int:
        """A number in the path; raises HTTPException 404 for what cannot be one."""
        text = self.path(name)
        if (found := as_id(text)) is None:
            raise HTTPException(404, f"there is no {what} {text[:60]!r}: its id is a whole number")
        return found


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A method and a path below /api/v1, with all that the OpenAPI document says about it.

    gives: the type of the answer, for the document. page: the answer is a page of these. tag: "" =
    the first part of the path.
    """

    method: str
    path: str
    handler: Callable[[ApiCall], Awaitable[Any]]
    name: str
    says: str
    gives: Any
    role: Role = Role.VIEWER
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | None = None
    page: bool = False
    tag: str = ""

    @property
    def write(self) -> bool:
        """It takes an Idempotency-Key."""
        return self.method != "GET"

    def route(self) -> Route:
        async def answer(request: Request) -> Response:
            return await _answer(self, request)

        return Route(self.path, answer, methods=[self.method], name=self.name)


ENDPOINTS: list[Endpoint] = []
H = TypeVar("H", bound=Callable[..., Awaitable[Any]])


def endpoint(
    place: str, gives: Any, *, name: str = "", says: str = "", **more: Any
) -> Callable[[H], H]:
    """The function behind this answers at a place such as "GET /overview"; its name and docstring
    are those of the document, unless others are given."""

    def decorate(handler: H) -> H:
        method, path = place.split()
        made = Endpoint(
            method=method,
            path=path,
            handler=handler,
            name=name or handler.__name__,
            says=says or handler.__doc__ or "",
            gives=gives,
            **more,
        )
        ENDPOINTS.append(made)
        return handler

    return decorate


class Page:
    """A page of a list: its rows as JSON takes them, and the cursor of the next."""

    def __init__(self, found: Found[Any], rows: list[Any] | None = None) -> None:
        self.rows = list(found) if rows is None else rows
        self.complete = found.complete
        self.after = found.next_after


def page_of(
    call: ApiCall, rows: Sequence[Any], key: Callable[[Any], object], *, complete: bool = True
) -> Page:
    """A page of what is read at once: the rows behind the one whose `key` is in the cursor, or
    behind its place if it is gone. complete: whether they are all there are."""
    begin = 0
    if call.query.after is not None:
        begin, last = cursor_place(call.query.after, int, str)
        begin = max(begin, 0)
        if not any(_mark(key(one)) == last for one in rows[begin - 1 : begin]):
            marks = (at for at, one in enumerate(rows, 1) if _mark(key(one)) == last)
            begin = next(marks, begin)
    end = begin + call.query.limit
    chosen = list(rows[begin:end])
    following = cursor_text([end, _mark(key(chosen[-1]))]) if end < len(rows) else None
    return Page(Found(chosen, complete=complete, next_after=following))


def _mark(key: object) -> str:
    """A name of any length in a cursor."""
    text = str(key).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=12).hexdigest()


async def _answer(endpoint: Endpoint, request: Request) -> Response:
    site = site_of(request)
    site.need(request, endpoint.role)
    try:
        query = _parsed(endpoint.query, _pairs(request), "query")
        body = _body(endpoint, request)
        call = ApiCall(site, request, query, body, _key(endpoint, request))
        if call.key is None:
            found = await endpoint.handler(call)
        else:
            found = await _once(endpoint, call)
    except Wrong as error:
        return problem(422, "the request has wrong values; see errors", errors=error.faults)
    except (
        errors.SelectionChanged,
        errors.DuplicateMessage,
        errors.JobSealed,
        errors.LeaseBusy,
    ) as error:
        facts = {
            name: getattr(error, name)
            for name in ("expected", "found", "msg_id")
            if hasattr(error, name)
        }
        return problem(409, site.without(str(error)), **facts)
    except errors.PayloadError as error:
        return problem(422, site.without(str(error)))
    except errors.MsgworkerError as error:
        if (answer := site.read_errors.answer(error)) is not None:
            raise answer from error
        return problem(409, site.without(str(error)))
    if endpoint.write:
        site.forget()
    if isinstance(found, Response):
        return found
    return _as_response(site, request, found)


def _as_response(site: Site, request: Request, found: Any) -> Response:
    if isinstance(found, Page):
        following = None
        if found.after is not None:
            given = [pair for pair in request.query_params.multi_items() if pair[0] != "after"]
            path = str(request.scope["path"])
            following = f"{path}?{urlencode([*given, ('after', str(found.after))])}"
        rows = [plain(one, site.without) for one in found.rows]
        return answer_of({"items": rows, "complete": found.complete, "next": following})
    if isinstance(found, Progress):
        text = plain(found) | {"finished": False}
        return answer_of(text, 202)
    if isinstance(found, Repaired):
        return answer_of(repaired(found, site.without))
    return answer_of(plain(found, site.without))


def repaired(done: Repaired, without: Callable[[str], str] = str) -> dict[str, Any]:
    found: dict[str, Any] = plain(done, without)
    found["why"] = {str(why): count for why, count in done.why}
    found["skips"] = [
        {"msg_id": one.msg_id, "why": one.why.value, "text": without(str(one))}
        for one in done.skips
    ]
    for info in found["sample"]:
        info["payload"] = None
    return found | {"finished": True}


def answer_of(value: Any, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(dumped(value), status, named, media_type="application/json")


def problem(status: int, detail: str, **more: Any) -> Response:
    body = {"type": "about:blank", "title": STATUS[status], "status": status, "detail": detail}
    return Response(dumped(body | plain(more)), status, media_type="application/problem+json")


# ---------------------------------------------------------------- requests


class Wrong(Exception):
    """Values of a request are wrong: where, and why."""

    def __init__(self, faults: list[dict[str, str]]) -> None:
        super().__init__(faults)
        self.faults = faults


def _pairs(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise Wrong([{"field": name[:100], "in": "query", "problem": "is given twice"}])
        found[name] = value
    return found


def _parsed(kind: type[BaseModel], values: Any, where: str) -> BaseModel:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = []
        for one in error.errors(include_url=False, include_input=False, include_context=False):
            place = ".".join(str(part)[:100] for part in one["loc"])
            faults.append({"field": place, "in": where, "problem": one["msg"][:300]})
        raise Wrong(faults[:20]) from None


def _body(endpoint: Endpoint, request: Request) -> BaseModel | None:
    raw: bytes = request.state.body if endpoint.write else b""
    if endpoint.body is None:
        if raw:
            raise Wrong([{"field": "", "in": "body", "problem": "this takes no body"}])
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw and kind != "application/json":
        raise HTTPException(415, "a body is JSON: Content-Type: application/json")
    try:
        values = decode(raw) if raw else {}
        if isinstance(values, dict) and "payload" in values:
            values["payload"] = decode_exactly(raw)["payload"]
    except errors.PayloadError as error:
        fault = str(error).replace("the payload", "the body")
        raise Wrong([{"field": "", "in": "body", "problem": fault}]) from None
    return _parsed(endpoint.body, values, "body")


# ---------------------------------------------------------------- once only


def _key(endpoint: Endpoint, request: Request) -> tuple[str, str] | None:
    """The key of a write, which is of who asks; and what it asks for."""
    given = request.headers.getlist(KEY_HEADER)
    if not given or not endpoint.write:
        return None
    if len(given) > 1 or not 0 < len(given[0]) <= MOST_KEY or not _IN_KEY.fullmatch(given[0]):
        fault = f"is 1 to {MOST_KEY} printable characters of ASCII, without blanks"
        raise Wrong([{"field": "Idempotency-Key", "in": "header", "problem": fault}])
    name = site_of(request).viewer(request).name
    whose = _digest(f"{name}\0{given[0]}".encode("utf-8", "replace"))
    what = _digest(f"{request.method} {request.scope['path']}\0".encode() + request.state.body)
    return whose, what


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


async def _once(endpoint: Endpoint, call: ApiCall) -> Any:
    """Do a write unless one with its key is recorded; then answer with what that one did.

    The key is recorded in the transaction that begins the write, and the database takes it once: so
    of requests that come at the same time, to any process, one does it.
    """
    assert call.key is not None
    (whose, what), site = call.key, call.site
    before = await site.ask(site.app.ops.recorded, whose)
    if before is None:
        try:
            return await endpoint.handler(call)
        except errors.KeyUsed:
            before = await site.ask(site.app.ops.recorded, whose)
    if before is None:
        return problem(409, "a write with this Idempotency-Key was recorded and is gone; look")
    return _replayed(before, what)


def _replayed(before: Operation, what: str) -> Response:
    if before.request != what:
        return problem(
            422, "this Idempotency-Key was used for another request; take a new key for each"
        )
    operation_before = operation(before)
    if before.kind == "send":
        operation_before |= {"msg_id": before.last_id}
    return answer_of(operation_before, idempotency_replayed="true")


def operation(found: Operation) -> dict[str, Any]:
    """An operation, as the answer to its request has it too."""
    return {
        "kind": found.kind,
        "op_id": found.op_id,
        "matched": found.matched,
        "changed": found.changed,
        "skipped": found.skipped,
        "finished": found.finished_at is not None,
    }
