"""What people may do, one function each; the CLI and the web page both call it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from msgworker.config import whole
from msgworker.dialects import connecting, writing
from msgworker.errors import ConfigError
from msgworker.message import Word
from msgworker.store import change, find
from msgworker.store.find import Count, MessageInfo
from msgworker.table import Tables

MAX_LIMIT = 10_000


class Ops:
    """Looking and repairing; every call is a short transaction of its own."""

    def __init__(self, engine: sa.Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables

    def counts(self) -> list[Count]:
        """How many messages are in each state, by topic, with the age of the oldest."""
        with connecting(self._engine) as conn:
            return find.counts(conn, self._tables)

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

    def rerun(
        self,
        ids: Sequence[int] | None = None,
        *,
        topic: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Try failed or dead messages again, with no tries counted; return how many.

        By ids, or all dead ones (of a topic). Done messages only with force and by ids; new and
        running ones never. dry_run: only count.
        """
        if ids is not None:
            return self._rerun_ids(ids, force, dry_run)
        rerun, after = 0, None
        while True:
            with writing(self._engine) as conn:
                batch = change.ids_in_state(conn, self._tables, Word.DEAD, topic=topic, after=after)
                rerun += len(batch) if dry_run else change.rerun(conn, self._tables, batch)
            if len(batch) < change.BATCH:
                return rerun
            after = batch[-1]

    def _rerun_ids(self, ids: Sequence[int], force: bool, dry_run: bool) -> int:
        rerun = 0
        for start in range(0, len(ids), change.BATCH):
            part = ids[start : start + change.BATCH]
            with writing(self._engine) as conn:
                if dry_run:
                    allowed = {Word.FAILED, Word.DEAD} | ({Word.DONE} if force else set())
                    infos = [find.show(conn, self._tables, i) for i in part]
                    rerun += sum(info is not None and info.status in allowed for info in infos)
                else:
                    rerun += change.rerun(conn, self._tables, part, done_too=force)
        return rerun


def _word(status: str | Word) -> Word:
    try:
        return Word(status)
    except ValueError:
        words = ", ".join(word.value for word in Word)
        raise ConfigError(f"status must be one of {words}; got {status!r}") from None
