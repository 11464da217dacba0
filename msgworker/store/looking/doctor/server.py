"""Settings of the server that promises rest on, and its clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker import dialects
from msgworker.config import Settings
from msgworker.dialects import Trouble, is_overtime, now, real_instant, seconds_since, trouble
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.tables import requirements

SKEW_SECONDS = 30.0


def settings(p: Patient) -> list[Finding]:
    """Durability, and whether the server takes writes."""
    found = []
    for setting in dialects.SERVER_SETTINGS[p.dialect.name]:
        try:
            value = str(p.conn.scalar(sa.text(setting.query)))
        except DBAPIError as error:
            if is_overtime(error):
                raise
            continue  # an older or newer server does not have it, or does not show it
        if value.lower() not in setting.good:
            make = needed if setting.needed else advised
            text = f"{setting.name} is {value}: {setting.otherwise}"
            found.append(make("server", text, *([setting.mend] if setting.mend else [])))
    version = ".".join(map(str, p.conn.dialect.server_version_info or ()))
    return found or [fine("server", f"{p.dialect.name} {version} keeps what it has committed")]


def isolation(p: Patient) -> list[Finding]:
    """READ COMMITTED on our connections, whatever the server's default is."""
    if p.dialect.one_writer:
        return []
    try:
        with p.another() as conn:
            level = conn.get_isolation_level()
    except DBAPIError as error:  # Oracle shows it only to who may read v$transaction
        if trouble(error) is not Trouble.REFUSED:
            raise
        return []
    if level == "READ COMMITTED":
        return []
    text = f"connections run at {level} although READ COMMITTED was asked for; is a proxy between?"
    return [needed("server", text)]


def pooler(p: Patient) -> list[Finding]:
    """What does not work where a session of the server is not ours to keep."""
    if not dialects.shares_sessions(p.conn):
        return []
    text = (
        "a pooler is in front of the database: no prepared statements and no notifications are "
        "used, messages of other processes wait for the next look (poll_seconds); if it pools by "
        "session, add pooler=session to the url (docs/operate/poolers.md)"
    )
    return [advised("server", text)]


def succession(p: Patient) -> list[Finding]:
    """Once a standby was promoted: whether this is the primary that it replaced, as far as this
    process can know."""
    told = dialects.succession_of(p.conn.engine).words(p.conn)
    if told is None:
        return []
    is_old, text = told
    if not is_old:
        return [fine("server", text)]
    text += (
        ": it is an old primary, which was replaced; let connections lead to the new one "
        "(docs/operate/failover.md)"
    )
    return [needed("server", text)]


def galera(p: Patient) -> list[Finding]:
    """What is otherwise on a cluster whose nodes all take writes."""
    if not p.dialect.certifies:
        return []
    query = sa.text("SHOW STATUS LIKE 'wsrep_cluster_size'")
    size = int(p.conn.execute(query).one()[1])
    step, waits = p.conn.execute(
        sa.text("SELECT @@auto_increment_increment, @@wsrep_sync_wait")
    ).one()
    found = [fine("server", f"a Galera cluster of {size} nodes; gaps between ids are harmless")]
    if size > 1 and step > 1 and not waits & 4:
        text = (
            "each node gives out ids of its own: one that is taken here may be lower than one that "
            "was committed on another node a moment ago, and is then handled first; let all "
            "producers of an object write to one node, or set wsrep_sync_wait, or let one node "
            "take all writes, with auto_increment_increment = 1 (docs/operate/galera.md)"
        )
        found.append(advised("server", text, "SET GLOBAL wsrep_sync_wait = 4"))
    return found


def snapshots(p: Patient) -> list[Finding]:
    """Who keeps the database from cleaning up what has ended."""
    query = dialects.OLDEST_SNAPSHOT.get(p.dialect.name)
    if query is None:
        return []
    try:
        oldest = p.conn.execute(sa.text(query)).first()
    except DBAPIError as error:
        if is_overtime(error) or trouble(error) is Trouble.LOST:
            raise
        return []  # this login may not see others, or an older server does not show them
    if oldest is None:
        return []
    who, seconds, ends = oldest
    since = "" if seconds is None else f" for {float(seconds) / 3600:.1f} h"
    text = (
        f"{who} has held a snapshot{since}: no message that has ended since is cleaned up, and "
        f"claims read them again and again; let it end, or end it: {ends}"
    )
    return [advised("server", text)]


def clock(p: Patient) -> list[Finding]:
    """All times are the database's; this host's clock only words ages."""
    theirs = p.conn.scalar(sa.select(now()))
    if theirs is None:
        return []
    skew = (datetime.now(UTC) - theirs).total_seconds()
    if abs(skew) <= SKEW_SECONDS:
        return [fine("clock", f"this host and the database differ by {abs(skew):.1f} s")]
    way = "ahead of" if skew > 0 else "behind"
    text = (
        f"this host's clock is {abs(skew):,.0f} s {way} the database's: leases and back-offs are "
        "right all the same, ages shown here are not"
    )
    return [advised("clock", text)]


NEWEST = 100
"""So many of the newest messages are asked when they were made."""
WHICH_ZONE = (
    'name the zone of its local times, MessageTable(time_zone="Asia/Shanghai") or `time_zone` in '
    "msgworker.toml, in all programs (docs/reference/adopting.md)"
)


def local_times(p: Patient) -> list[Finding]:
    """Whether columns without a zone hold the local times of the declared one."""
    zone, found = p.spec.time_zone, list[Finding]()
    if p.live is None or p.as_is is None:
        return found
    t, c = p.live, p.live.cols()
    if c.created_at is not None:
        w = sa.select(c.created_at.label("at")).order_by(c.msg_id.desc()).limit(NEWEST).subquery().c
        age = _read(p, sa.select(seconds_since(sa.func.max(real_instant(w.at)))))
        if age is not None and float(age) < -Settings().lease_seconds:
            text = (
                f"the newest message was made {-float(age):,.0f} s in the future: column "
                f"{t.names['created_at']} is read as the time of {zone}, in which it is not "
                f"written; {WHICH_ZONE}"
            )
            found.append(needed("time zone", text))
    own = [
        column.name
        for role, column in p.as_is.columns.items()
        if role in requirements.INSTANTS
        and t.has(role)
        and dialects.is_own_clock(
            p.dialect.name, dialects.kind_of(getattr(c, role)), column.default
        )
    ]
    if own:
        here = int(p.conn.exec_driver_sql(dialects.SESSION_OFFSET[p.dialect.name]).scalar_one())
        if here != dialects.offset_now(zone):
            text = (
                f"the default of column {', '.join(own)} is the database's own time "
                f"({here / 3600:+g} h from UTC now), but it is read as the time of {zone}: new "
                f"messages look too old or too young; {WHICH_ZONE}"
            )
            found.append(needed("time zone", text))
    return found


def _read(p: Patient, query: sa.Select[Any]) -> Any:
    """The value; None where this login may not read it, which `rights` tells, or where it is none
    that can be read so, which is told of its column."""
    try:
        return p.conn.scalar(query)
    except DBAPIError as error:
        if trouble(error) in (Trouble.AGAIN, Trouble.LOST):
            raise
        return None
