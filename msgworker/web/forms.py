"""The fields of forms, and which messages a page shows or changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from msgworker.config import as_id, as_instant, id_of
from msgworker.counted import plural
from msgworker.errors import ConfigError
from msgworker.message import State
from msgworker.store.bounded import MOST

# --- The fields of a form.

MOST_FIELDS = 2000
"""Of a form; more than a page of messages has."""


def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent, {} if the body is none; of one that is there several
    times the last."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    try:
        text = request.state.body.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        return {}


# --- The messages of a page or a write: ids or filters, as in its URL. Pure.

MOST_TEXT = 500
"""Characters of a filter."""
MOST_IDS = 1000
"""Ids of a selection; it is part of a URL."""
SPANS = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
"""`since`, in seconds; it is also an instant of ISO 8601."""
LABELS = {
    "status": "state",
    "topic": "topic",
    "object": "object",
    "error": "error contains",
    "since": "created since",
    "group": "error group",
    "job": "job",
    "acknowledged": "acknowledged",
}

SAID = {
    "job": "of job {}",
    "topic": "of topic {}",
    "object": "of object {}",
    "group": "of error group {}",
    "error": "whose error contains {}",
    "since": "created since {}",
    "acknowledged": "(acknowledged: {})",
}
KNOWN = {"": None, "no": False, "yes": True}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Texts of a URL: ids "1,2,3", or filters; "" = not given. group: a fingerprint of failures."""

    ids: str = ""
    status: str = ""
    topic: str = ""
    object: str = ""
    error: str = ""
    since: str = ""
    group: str = ""
    job: str = ""
    acknowledged: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Chosen:
        """From a query or a form; raises ConfigError for a text that is too long or not allowed.

        Spaces around a value are removed, but not those of a topic or an object."""
        found: dict[str, str] = {}
        for one in fields(cls):
            text = given.get(one.name, "")
            text = text if one.name in ("topic", "object") else text.strip()
            most = MOST_IDS * 20 if one.name == "ids" else MOST_TEXT
            if len(text) > most:
                raise ConfigError(f"{one.name} has at most {most:,} characters")
            found[one.name] = text
        made = cls(**found)
        if made.acknowledged not in KNOWN:
            raise ConfigError(f"acknowledged is yes or no, got {made.acknowledged!r:.60}")
        _ = made.numbers, made.instant(), made.state, made.job_id
        return made

    @property
    def query(self) -> dict[str, str]:
        """The given values as a query of a URL."""
        return {
            one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name)
        }

    @property
    def numbers(self) -> list[int] | None:
        if not self.ids:
            return None
        texts = {text.strip(): None for text in self.ids.split(",") if text.strip()}
        if len(texts) > MOST_IDS:
            raise ConfigError(f"at most {MOST_IDS:,} ids; choose more by filters")
        if not texts:
            raise ConfigError(f"ids are whole numbers such as 12,15; got {self.ids!r:.60}")
        return [id_of(text) for text in texts]

    @property
    def state(self) -> State | None:
        if not self.status:
            return None
        try:
            return State(self.status)
        except ValueError:
            words = ", ".join(one.value for one in State)
            raise ConfigError(f"a state is one of {words}; got {self.status!r:.60}") from None

    @property
    def job_id(self) -> int | None:
        return whole({"job": self.job}, "job", 0, 1, MOST) or None

    def instant(self) -> datetime | None:
        """`since` as an instant; raises ConfigError."""
        if not self.since:
            return None
        if self.since in SPANS:
            return datetime.now(UTC) - timedelta(seconds=SPANS[self.since])
        found = as_instant(self.since, "since")
        if found is None or not 1970 <= found.year <= 9000:
            words = ", ".join(SPANS)
            raise ConfigError(
                f"since is {words}, or an instant such as 2026-11-22T13:00Z; got {self.since!r:.60}"
            )
        return found

    @property
    def filters(self) -> dict[str, Any]:
        """As ops takes them, without the ids."""
        return {
            "status": self.state,
            "topic": self.topic or None,
            "object_id": self.object or None,
            "error": self.error or None,
            "since": self.instant(),
            "fingerprint": self.group or None,
            "job": self.job_id,
            "acknowledged": KNOWN[self.acknowledged],
        }

    @property
    def asked(self) -> dict[str, Any]:
        """As the writes of ops take it."""
        if self.ids:
            return {"ids": self.numbers}
        return {name: value for name, value in self.filters.items() if value is not None}

    @property
    def fixed(self) -> Chosen:
        """The same, with `since` as an instant: it stays the same when it is used later."""
        at = self.instant()
        return self if at is None else replace(self, since=at.isoformat(timespec="seconds"))

    def chips(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Each filter that is given: what it is, its value, and the query without it."""
        for name, label in LABELS.items():
            value = getattr(self, name)
            if value:
                yield label, value, {k: v for k, v in self.query.items() if k != name}

    @property
    def words(self) -> str:
        """For people: "the message 12", "dead messages of topic a"."""
        if self.ids:
            found = self.numbers or []
            if len(found) == 1:
                return f"message {found[0]}"
            return f"{plural(len(found), 'message')} by id"
        parts = [
            said.format(getattr(self, name)) for name, said in SAID.items() if self.query.get(name)
        ]
        return (
            " ".join([f"{self.status} messages".strip(), *parts]) if self.query else "all messages"
        )


def whole(given: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number of a query; raises ConfigError."""
    text = given.get(name, "").strip()
    if not text:
        return default
    if (found := as_id(text)) is None:
        raise ConfigError(f"{name} is a whole number, got {text!r:.60}")
    if not least <= found <= most:
        raise ConfigError(f"{name} is {least:,} to {most:,}, got {found}")
    return found
