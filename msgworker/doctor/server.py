"""Rights of the login, the plan of the search, and the settings of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db.catalogue import plan_of, policies_of, row_estimate
from msgworker.db.clock import kind_of, now, offset_now, real_instant, seconds_since
from msgworker.db.database import Trouble
from msgworker.db.errors import raise_lost, reason_of, trouble
from msgworker.db.servers import shares_sessions, succession_of
from msgworker.doctor.structure import Finding, Subject, advised, fine, needed
from msgworker.schema.requirements import of_own_policies
from msgworker.store import bounded, candidates
from msgworker.table.build import own_tables
from msgworker.table.columns import INSTANTS
from msgworker.table.tables import Need, Tables

# --- What this login may do, tried with statements that match no row.

NEVER = sa.literal_column("1") == sa.literal_column("0")


def rights(p: Subject) -> list[Finding]:
    """SELECT, UPDATE on messages, and what the App wants; INSERT for producers; all four on the
    tables beside."""
    found: list[Finding] = []
    query = p.database.current_user
    whom = str(p.conn.scalar(sa.text(query))) if query else None
    with p.another() as conn:
        for table, right, statement, is_needed in _trials(p):
            reason = _refused(conn, statement)
            if reason is None:
                continue
            fix = [f"GRANT {right} ON {p.table_name(table)} TO {whom}"] if whom else []
            what = p.wants.get(right) if p.live is not None and table is p.live.message else None
            for_what = f", which {what} needs" if what else ""
            text = f"this login may not {right} on {table.name}{for_what}: {reason}"
            told = needed if is_needed else advised
            found.append(told("rights", text, *fix))
        found += _headers(p, conn, whom)
        for needs in ((Need.RUN,), (Need.OPS, Need.FEATURE)):
            for fault in of_own_policies(policies_of(conn, own_tables(p.ideal, *needs))):
                told = needed if fault.needed and Need.RUN in needs else advised
                found.append(told("rights", fault.text))
    return found or [fine("rights", f"{whom or 'this process'} may read and write all it needs to")]


def _trials(p: Subject) -> Iterator[tuple[sa.Table, str, Any, bool]]:
    if p.live is not None:
        message, c = p.live.message, p.live.cols()
        yield message, "SELECT", sa.select(c.msg_id).where(NEVER), True
        change = sa.update(message).values({p.live.names["status"]: c.status})
        yield message, "UPDATE", change.where(NEVER), True
        copy = _copy(message, [p.live.names["object_id"]])
        yield message, "INSERT", copy, "INSERT" in p.wants
        if "DELETE" in p.wants:
            yield message, "DELETE", sa.delete(message).where(NEVER), True
    runs = own_tables(p.ideal, Need.RUN)
    for table in (*runs, *own_tables(p.ideal, Need.OPS, Need.FEATURE)):
        is_needed = table in runs
        lacks, first = p.lacks(table), next(iter(table.c))
        if lacks.exists is False or first in lacks.columns:
            continue
        yield table, "SELECT", sa.select(first).where(NEVER), is_needed
        yield table, "INSERT", _copy(table, [first.name]), is_needed
        yield table, "UPDATE", sa.update(table).values({first: first}).where(NEVER), is_needed
        yield table, "DELETE", sa.delete(table).where(NEVER), is_needed


def _headers(p: Subject, conn: Connection, whom: str | None) -> Iterator[Finding]:
    """Where rights are given for single columns: a traced login that may send, but without headers,
    is refused each send."""
    if p.live is None or not (p.traced and p.has("headers")):
        return
    message, names = p.live.message, p.live.names
    headers, quote = names["headers"], p.sql_dialect.identifier_preparer.quote

    def trial(right: str, role: str) -> Any:
        if right == "UPDATE":
            return sa.update(message).values({names[role]: sa.null()}).where(NEVER)
        nothing = sa.select(sa.literal_column("1").label("a")).subquery("n")
        chosen = sa.select(sa.null()).select_from(nothing).where(NEVER)
        return sa.insert(message).from_select([names[role]], chosen, include_defaults=False)

    replace = ("UPDATE", "unique_key", 'on_duplicate="replace"')
    for right, role, what in (("INSERT", "object_id", "each send"), replace):
        if role not in names or _refused(conn, trial(right, role)) is not None:
            continue  # it does not send
        reason = _refused(conn, trial(right, "headers"))
        if reason is not None:
            text = f"tracing is on, and this login may not {right} {message.name}.{headers}: "
            fix = f"GRANT {right} ({quote(headers)}) ON {p.table_name(message)} TO {whom}"
            yield needed("rights", f"{text}{what} is refused: {reason}", *([fix] if whom else []))


def _copy(table: sa.Table, names: list[str]) -> Any:
    """An INSERT that inserts nothing."""
    source = sa.select(*(table.c[name] for name in names)).where(NEVER)
    return sa.insert(table).from_select(names, source, include_defaults=False)


def _refused(conn: Connection, statement: Any) -> str | None:
    """The database's words if the statement is refused; it changes nothing and is rolled back."""
    try:
        conn.execute(statement)
        return None
    except DBAPIError as error:
        raise_lost(error)
        return reason_of(error) if trouble(error) is Trouble.REFUSED else None
    finally:
        conn.rollback()


# --- The plan of the query that looks for messages to claim.

LAST_KEY = "\uffff"
WORTH_AN_INDEX = 10_000
"""In a table with fewer rows a planner may rightly read all of it."""


def plan(p: Subject) -> list[Finding]:
    """Which index the claim's candidates are read by."""
    if p.live is None or any(c.name not in p.columns for c in p.live.message.c):
        return []
    query, params, index = _candidates(p, p.live)
    lines = plan_of(p.conn, query, params)
    if lines is None:
        return []
    text = "\n".join(lines)
    names = p.database.index_parts(p.conn, p.live.message, index)
    if any(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
        return [fine("plan", f"messages are claimed by index {index}", detail=text)]
    rows = row_estimate(p.conn, p.live.message) or 0
    if rows < WORTH_AN_INDEX:
        return [fine("plan", "the table is so small that claims read all of it", detail=text)]
    what = f"claims do not use index {index}: their cost grows with the table"
    fix = p.database.analyze.format(p.table_name(p.live.message))
    return [advised("plan", what, *([fix] if fix else []), detail=text)]


def _candidates(p: Subject, t: Tables) -> tuple[Any, dict[str, Any], str]:
    """The statement as the claim runs it; it is built by running it once, behind the last row."""
    if t.database.oldest_index:
        candidates.oldest(p.conn, t, mark=bounded.MOST, limit=1)
        index = t.spec.index_name("oldest")
        return t.built("oldest", _never), {"mark": bounded.LEAST, "mw_rows": 100}, index
    candidates.heads(p.conn, t, after=LAST_KEY, limit=1)
    index = t.spec.index_name("object")
    return t.built(("page", False, None), _never), {"after": "", "mw_rows": 100}, index


def _never() -> Any:
    raise AssertionError("the claim has not built its statement")


# --- Settings of the server that promises rest on, and its clock.

SKEW_SECONDS = 30.0


def settings(p: Subject) -> list[Finding]:
    """Durability, and whether the server takes writes."""
    found = []
    for setting in p.database.server_settings:
        try:
            value = str(p.conn.scalar(sa.text(setting.query)))
        except DBAPIError as error:
            raise_lost(error)
            continue  # an older or newer server does not have it, or does not show it
        if value.lower() not in setting.good:
            make = needed if setting.needed else advised
            text = f"{setting.name} is {value}: {setting.otherwise}"
            found.append(make("server", text, *setting.fix))
    version = ".".join(map(str, p.conn.dialect.server_version_info or ()))
    return found or [fine("server", f"{p.database.name} {version} keeps what it has committed")]


def isolation(p: Subject) -> list[Finding]:
    """READ COMMITTED on our connections, whatever the server's default is."""
    if p.database.one_writer:
        return []
    with p.another() as conn:
        level = conn.get_isolation_level()  # Oracle shows it only to who may read v$transaction
    if level == "READ COMMITTED":
        return []
    text = f"connections run at {level} although READ COMMITTED was asked for; is a proxy between?"
    return [needed("server", text)]


def pooler(p: Subject) -> list[Finding]:
    """What does not work where a session of the server is not ours to keep."""
    if not shares_sessions(p.conn):
        return []
    text = (
        "a pooler is in front of the database: no prepared statements and no notifications are "
        "used, messages of other processes wait for the next look (poll_seconds); if it pools by "
        "session, add pooler=session to the url (docs/operate/poolers.md)"
    )
    return [advised("server", text)]


def succession(p: Subject) -> list[Finding]:
    """Once a standby was promoted: whether this is the primary it replaced, as far as is known."""
    told = succession_of(p.conn.engine).words(p.conn)
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


def cluster(p: Subject) -> Iterator[Finding]:
    """What is otherwise where several servers take writes."""
    if not p.database.certifies:
        text, wrong, fix = p.database.single_primary(p.conn)
        if text:
            yield fine("server", text)
        if wrong:
            yield advised("server", wrong, fix)
        return
    known = p.database.several_writers
    assert known is not None
    size, step, in_order = p.conn.execute(sa.text(known.query)).one()
    yield fine("server", f"{known.words.format(size)}; gaps between ids are harmless")
    if int(size) != 1 and step > 1 and not in_order:
        yield advised("server", known.otherwise, known.fix)


def snapshots(p: Subject) -> list[Finding]:
    """Who keeps the database from cleaning up what has ended."""
    query = p.database.oldest_snapshot
    if not query:
        return []
    oldest = p.conn.execute(sa.text(query)).first()
    if oldest is None:
        return []
    who, seconds, ends = oldest
    since = "" if seconds is None else f" for {float(seconds) / 3600:.1f} h"
    text = (
        f"{who} has held a snapshot{since}: no message that has ended since is cleaned up, and "
        f"claims read them again and again; let it end, or end it: {ends}"
    )
    return [advised("server", text)]


def clock(p: Subject) -> list[Finding]:
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
AHEAD_SECONDS = 30.0
"""How far in the future the newest message may seem to be made: clocks differ."""
WHICH_ZONE = (
    'name the zone of its local times, MessageTable(time_zone="Asia/Shanghai") or `time_zone` in '
    "msgworker.toml, in all programs (docs/reference/adopting.md)"
)


def local_times(p: Subject) -> Iterator[Finding]:
    """Whether columns without a zone hold the local times of the declared one."""
    if p.live is None or p.as_is is None:
        return
    zone = p.spec.time_zone
    t, c = p.live, p.live.cols()
    if c.created_at is not None:
        w = sa.select(c.created_at.label("at")).order_by(c.msg_id.desc()).limit(NEWEST).subquery().c
        age = None
        try:
            age = p.conn.scalar(sa.select(seconds_since(sa.func.max(real_instant(w.at)))))
        except DBAPIError as error:  # no right to read it, or no instants: other checks say so
            if trouble(error) in (Trouble.AGAIN, Trouble.LOST):
                raise
        if age is not None and float(age) < -AHEAD_SECONDS:
            text = (
                f"the newest message was made {-float(age):,.0f} s in the future: column "
                f"{t.names['created_at']} is read as the time of {zone}, in which it is not "
                f"written; {WHICH_ZONE}"
            )
            yield needed("time zone", text)
    own = [
        column.name
        for role, column in p.as_is.columns.items()
        if role in INSTANTS
        and t.has(role)
        and p.database.is_local_default(
            kind_of(getattr(c, role)).form, (column.default or "").lower()
        )
    ]
    if own:
        here = int(p.conn.exec_driver_sql(p.database.session_offset).scalar_one())
        if here != offset_now(zone):
            text = (
                f"the default of column {', '.join(own)} is the database's own time "
                f"({here / 3600:+g} h from UTC now), but it is read as the time of {zone}: new "
                f"messages look too old or too young; {WHICH_ZONE}"
            )
            yield needed("time zone", text)
