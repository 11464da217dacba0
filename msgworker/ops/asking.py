"""Arguments of a write, checked before anything is done."""

from __future__ import annotations

import getpass
import math
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from msgworker.config import YEAR_SECONDS, number, seconds, whole
from msgworker.errors import ConfigError
from msgworker.message import State, StateName
from msgworker.payload import clean, without_url_secrets
from msgworker.store.changing.audit import MAX_ACTOR, MAX_REASON, Operation
from msgworker.store.changing.change import Filter
from msgworker.store.changing.pause import MAX_TOPIC
from msgworker.store.items import ItemState

MAX_RATE = 1_000_000
KEPT_IDS = 10_000
"""The most ids that the audit stores; of a longer list it keeps the first and the last."""


@dataclass(frozen=True, slots=True)
class Who:
    """The actor, the reason, from where it was asked, the key of the request, and what was asked
    with it."""

    actor: str
    reason: str | None
    source: str | None = None
    key: str | None = None
    request: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """As the audit records them."""
        names = ("actor", "reason", "source", "key", "request")
        return {name: getattr(self, name) for name in names}


def who(
    actor: str | None,
    reason: str | None,
    *,
    source: str | None = None,
    key: str | None = None,
    request: str | None = None,
    needs_reason: str | None = None,
) -> Who:
    """The actor (default: user and host of this process), reason and source; raises ConfigError."""
    texts = (("actor", actor, MAX_ACTOR), ("reason", reason, MAX_REASON))
    for name, value, most in (*texts, ("source", source, MAX_ACTOR)):
        if value is not None and (not isinstance(value, str) or len(value) > most):
            raise ConfigError(f"{name} is a text of at most {most} characters, got {value!r:.80}")
    if needs_reason is not None and not (reason or "").strip():
        raise ConfigError(f"{needs_reason} needs a reason; it is kept in the audit")
    named = (actor or "").strip() or _user()
    why = clean(without_url_secrets(reason), MAX_REASON) if reason else None
    where = clean(source, MAX_ACTOR) if source else None
    return Who(clean(named, MAX_ACTOR), why, where, key, request)


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in a container
        user = "unknown"
    return f"{user}@{socket.gethostname() or 'host'}"


def key_of(key: Any) -> str:
    """The key of a request; raises ConfigError."""
    if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9.:_-]{1,100}", key):
        raise ConfigError(f"a key is 1 to 100 letters, digits and any of .:_-, got {key!r:.80}")
    return key


def ids_of(ids: Any) -> list[int] | None:
    """Ids in order, each once; None for None. Raises ConfigError for an impossible id."""
    if ids is None:
        return None
    if isinstance(ids, int) and not isinstance(ids, bool):
        ids = [ids]
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ConfigError(f"ids must be whole numbers, got {ids!r:.80}")
    found = set()
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int):
            raise ConfigError(f"an id is a whole number, got {one!r:.80}")
        if not -(2**63) <= one < 2**63:
            raise ConfigError(f"an id has at most 64 bits, got {one!r:.60}")
        found.add(one)
    return sorted(found)


def filter_of(words: tuple[State, ...], **given: Any) -> Filter:
    """A filter of checked values; raises ConfigError. Of a group are messages that have failed."""
    if given.get("fingerprint") is not None:
        words = tuple(one for one in words if one in (State.FAILED, State.DEAD)) or words
    for name in ("topic", "error", "fingerprint"):
        value = given.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"{name} must be a text, got {value!r:.80}")
    since_of(given.get("since"))
    if given.get("up_to") is not None:
        whole("up_to", given["up_to"], -(2**63), 2**63 - 1)
    if given.get("object_id") is not None and isinstance(given["object_id"], float | list | dict):
        raise ConfigError(f"object_id must be a text or a number, got {given['object_id']!r:.80}")
    return Filter(words, **given)


def since_of(since: Any) -> datetime | None:
    """Messages created from this instant on; raises ConfigError if it is not aware."""
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise ConfigError(f"since must be an aware datetime, got {since!r:.80}")
    if since is not None:
        try:
            since.astimezone(UTC)
        except OverflowError:
            raise ConfigError(
                f"since must be within the years 1 to 9999 in UTC, got {since.isoformat()}"
            ) from None
    return since


def item_state(given: Any) -> ItemState:
    """The state of an item; raises ConfigError for an unknown one."""
    try:
        return ItemState(given)
    except ValueError:
        raise ConfigError(f'state must be "done" or "failed", got {given!r:.80}') from None


def word(
    status: StateName | State | None,
    allowed: tuple[State, ...] = tuple(State),
    why: str = "",
) -> State | None:
    """An allowed state; raises ConfigError with `why` for others."""
    if status is None:
        return None
    try:
        found = State(status)
    except ValueError:
        words = ", ".join(w.value for w in State)
        raise ConfigError(f"status must be one of {words}; got {status!r:.60}") from None
    if found not in allowed:
        raise ConfigError(f"messages that are {found} {why}")
    return found


def rate_of(rate: Any) -> float | None:
    """The most messages a second; None = no limit."""
    return None if rate is None else number("rate", rate, 0.001, MAX_RATE)


def topic_to_pause(topic: Any) -> str:
    """A topic to pause or resume, or ConfigError."""
    if not isinstance(topic, str) or not 0 < len(topic) <= MAX_TOPIC:
        raise ConfigError(f"a topic is a text of 1 to {MAX_TOPIC} characters, got {topic!r:.80}")
    return topic


def limit_of(limit: Any, most: int) -> int:
    """How many rows of a listing."""
    return whole("limit", limit, 1, most)


def age_of(older_than: Any) -> float | datetime:
    """An age in seconds, or the instant itself; raises ConfigError unless it is in the past."""
    if isinstance(older_than, datetime):
        if older_than.tzinfo is None:
            raise ConfigError(
                f"older_than needs its time zone, got {older_than!r}; use datetime.now(UTC)"
            )
        if older_than >= datetime.now(UTC):
            raise ConfigError(f"older_than is in the future: {older_than.isoformat()}")
        return older_than
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    if older_than is None:
        raise ConfigError("older_than is required: how old messages must be, such as 30d")
    age = seconds("older_than", older_than, -math.inf, 100 * YEAR_SECONDS)
    if age <= 0:
        raise ConfigError(
            f"older_than must be more than 0 seconds, such as 30d, got {older_than!r:.60}"
        )
    return age


def not_both(filters: dict[str, Any]) -> None:
    """Raise ConfigError if there is a filter beside ids."""
    given = [name for name, value in filters.items() if value is not None]
    if given:
        raise ConfigError(f"give ids or a filter, not both: {', '.join(given)}")


def none_of(filters: dict[str, Any]) -> bool:
    """Whether no filter is given; `up_to` alone chooses nothing."""
    return all(value is None for name, value in filters.items() if name != "up_to")


_NAMES = ("ids", "status", "topic", "object_id", "error", "since", "fingerprint", "up_to")


def again(op: Operation, ids: list[int] | None) -> dict[str, Any]:
    """The selection of an interrupted operation; `ids`: given again."""
    asked: dict[str, Any] = {name: op.filter.get(name) for name in _NAMES}
    asked["ids"] = asked["ids"] if ids is None else ids
    if asked["since"] is not None:
        asked["since"] = datetime.fromisoformat(asked["since"])
    if op.kind == "rerun":
        for name in ("force", "with_successors", "also_done"):
            asked[name] = bool(op.filter.get(name))
    return asked


def kept(ids: list[int]) -> dict[str, Any]:
    """A list of ids in the form stored in the audit."""
    if len(ids) <= KEPT_IDS:
        return {"ids": ids}
    return {"ids_from": ids[0], "ids_to": ids[-1], "ids_count": len(ids)}
