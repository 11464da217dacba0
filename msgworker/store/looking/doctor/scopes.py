"""Slices that no instance looks at."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError

from msgworker import dialects
from msgworker.counted import plural
from msgworker.dialects import is_overtime
from msgworker.store.claiming import slices
from msgworker.store.looking.doctor.finding import Finding, advised
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.looking.instances import InstanceInfo, instances
from msgworker.store.sharing import scopes
from msgworker.table import Tables


def unseen(p: Patient) -> list[Finding]:
    """Shards without an owner, and messages whose flag no instance has."""
    if p.live is None or not dialects.is_there(p.inspector, p.live.lease):
        return []
    try:
        return list(_found(p, p.live))
    except DBAPIError as error:
        if is_overtime(error):
            raise
        return []  # no right to read, or a column is missing: another check tells


def _found(p: Patient, t: Tables) -> Iterator[Finding]:
    who = scopes.live(instances(p.conn, t))
    if not any(one.scope for one in who):
        return
    lost = scopes.unowned(who)
    if lost:
        some = ", ".join(map(str, lost[:10])) + (", ..." if len(lost) > 10 else "")
        count = plural(len(lost), "shard", "is", "are")
        text = f"{count} owned by no live member ({some})"
        yield advised("scopes", f"{text}, as of the last heartbeats: their messages wait")
    for one in who:
        ttl, beat = one.scope.get("ttl"), one.scope.get("heartbeat")
        if isinstance(ttl, int | float) and isinstance(beat, int | float) and ttl < 2.99 * beat:
            text = f"{one.instance_id} renews its shards every {beat:g} s for {ttl:g} s"
            yield advised("scopes", f"{text}: a heartbeat that is late costs them; give it 3")
    yield from _undealt(p, t, who)


def _undealt(p: Patient, t: Tables, who: list[InstanceInfo]) -> Iterator[Finding]:
    flags = {one.scope.get("flag") for one in who}
    if None in flags or not t.has("instance_type"):  # an instance looks at all of them
        return
    if slices.open_in(p.conn, t, "instance_type", None):
        text = "messages wait without a flag, and every live instance looks at one flag only"
        yield advised("scopes", f"{text}: run `msgworker deal {' '.join(sorted(map(str, flags)))}`")
    known = slices.open_values(p.conn, t, "instance_type")
    others = sorted(known - flags)
    if others:
        text = f"messages wait whose flag no live instance has: {', '.join(others[:10])}"
        yield advised("scopes", f"{text}; `msgworker deal` deals them again")
