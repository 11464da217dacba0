"""What people may change, one function each: conditional, in bounded batches."""

from __future__ import annotations

from collections.abc import Sequence

from msgworker.dialects import writing
from msgworker.message import Word
from msgworker.ops.call import Call
from msgworker.store import change, find


class Repairs(Call):
    """Changing what stands in the table."""

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
