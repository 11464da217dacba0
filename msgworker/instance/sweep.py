"""Find rows that are flagged by us although no lane knows them, and give them back.

They come from a claim whose COMMIT arrived while its answer was lost. While `State.claiming` is
held no claim is under way, so every row flagged by us belongs to a lane in hand, or to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgworker.instance.links import Link
from msgworker.instance.state import State
from msgworker.store import recover

LIMIT = 5000


def release_unknown(state: State, link: Link) -> int:
    """Give such rows back without a try; the caller holds `state.claiming`. Returns how many."""
    with link.transaction() as conn:
        rows = recover.flagged_by(conn, state.tables, state.instance_id, limit=LIMIT)
    known = state.known() if rows else set()
    released = release(state, link, [msg_id for msg_id in rows if msg_id not in known])
    if released:
        state.log.warning("%d messages were flagged by us but not in hand; released", released)
    return released


def release(state: State, link: Link, ids: Sequence[int], *, tries: int | None = None) -> int:
    """Give rows flagged by us back without a try, but for those that somebody has locked. Returns
    how many. tries: as in `recover.release`."""
    released = 0
    for begin in range(0, len(ids), recover.BATCH):
        part = ids[begin : begin + recover.BATCH]
        with link.transaction() as conn:
            released += recover.release(conn, state.tables, part, me=state.instance_id, tries=tries)
    return released


def holds_nothing(state: State, link: Link) -> bool:
    """Whether no row at all is flagged by us."""
    with link.transaction() as conn:
        return not recover.flagged_by(conn, state.tables, state.instance_id, limit=1)
