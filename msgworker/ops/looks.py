"""What people may look at, one function each; nothing is changed by it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgworker.config import whole
from msgworker.dialects import connecting
from msgworker.errors import ConfigError
from msgworker.message import Word
from msgworker.ops.call import Call
from msgworker.store import find
from msgworker.store.find import Count, MessageInfo

MAX_LIMIT = 10_000


class Looks(Call):
    """Reading only."""

    def counts(self) -> list[Count]:
        """How many messages are in each state, by topic, with the age of the oldest."""
        with connecting(self._engine) as conn:
            return find.counts(conn, self._tables)

    def unfinished(self) -> int:
        """How many messages are unfinished: what a drain's report calls left."""
        with connecting(self._engine) as conn:
            return find.unfinished(conn, self._tables)

    def find(
        self,
        *,
        status: str | Word | None = None,
        topic: str | None = None,
        object_id: Any = None,
        error: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> list[MessageInfo]:
        """Messages by filter, lowest msg_id first; `after` = the last msg_id of the page before."""
        whole("limit", limit, 1, MAX_LIMIT)
        word = None if status is None else _word(status)
        with connecting(self._engine) as conn:
            return find.find(
                conn,
                self._tables,
                status=word,
                topic=topic,
                object_id=object_id,
                error=error,
                since=since,
                limit=limit,
                after=after,
            )

    def show(self, msg_id: int) -> MessageInfo | None:
        """One message with its payload, None if there is none."""
        with connecting(self._engine) as conn:
            return find.show(conn, self._tables, msg_id)


def _word(status: str | Word) -> Word:
    try:
        return Word(status)
    except ValueError:
        words = ", ".join(word.value for word in Word)
        raise ConfigError(f"status must be one of {words}; got {status!r}") from None
