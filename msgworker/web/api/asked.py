"""What requests may contain: types for parameters and bodies, each with its bounds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from msgworker.message import State

MOST_ID = 2**63 - 1
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class Asked(BaseModel):
    """Parameters or a body: an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            raise ValueError("must be a whole number")
        return int(value)
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
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair") from None
    return value


def _words(most: int) -> Any:
    """A text of 1 to `most` characters without NUL, which databases do not store."""
    return Field(min_length=1, max_length=most, pattern=r"^[^\x00]*$")


_STORABLE = AfterValidator(_storable)
Instant = Annotated[datetime, BeforeValidator(_instant, json_schema_input_type=datetime)]
Flag = Literal["0", "1"]
Id = Annotated[int, Field(strict=True, ge=-(2**63), le=MOST_ID)]
IdText = Annotated[int, Field(ge=-(2**63), le=MOST_ID), BeforeValidator(_whole)]
Count = Annotated[int, Field(strict=True, ge=0, le=MOST_ID)]
Status = Literal["new", "processing", "done", "failed", "dead", "unknown"]
Topic = Annotated[str, _words(1000), _STORABLE]
NewTopic = Annotated[str, _words(100), _STORABLE]
ObjectId = Annotated[str, _words(190), _STORABLE]
Key = Annotated[str, _words(190), _STORABLE]
Reason = Annotated[str, _words(1000), _STORABLE]
ErrorPart = Annotated[str, _words(2000), _STORABLE]
Kind = Annotated[str, _words(20), _STORABLE]
Actor = Annotated[str, _words(200), _STORABLE]
Fingerprint = Annotated[str, _words(64), _STORABLE]
Cursor = Annotated[str, _words(2000), _STORABLE]
Limit = Annotated[int, Field(ge=1, le=200), BeforeValidator(_whole)]
assert set(Status.__args__) == {state.value for state in State}  # type: ignore[attr-defined]


class Nothing(Asked):
    """No parameters."""


class Page(Asked):
    """limit: rows of a page. after: the cursor in `next` of the page before."""

    limit: Limit = 50
    after: Cursor | None = None


class Part(Page):
    """limit: rows of a page, 200 if not said. after: the cursor in `next` of the page before."""

    limit: Limit = 200


class Selection(Asked):
    """Messages by ids, or by filters that all hold; at least one of them. up_to: the highest
    msg_id, of those that a dry run counted."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    ids: list[Id] | None = Field(default=None, min_length=1, max_length=1000)
    status: Status | None = None
    topic: Topic | None = None
    object_id: ObjectId | None = None
    error: ErrorPart | None = None
    since: Instant | None = None
    fingerprint: Fingerprint | None = None
    up_to: Id | None = None


class Why(Asked):
    """reason: kept in the audit. dry_run: only count."""

    reason: Reason | None = None
    dry_run: bool = Field(default=False, strict=True)
