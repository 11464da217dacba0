"""Purge finished rows: select by age, lock, copy if requested, and delete, in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db.catalogue import asked, column_types, policies_of
from msgworker.db.clock import UtcDateTime, utc_of
from msgworker.db.database import of, of_any_type
from msgworker.db.types import NamedType, bytewise
from msgworker.errors import ConfigError, SchemaError
from msgworker.message import Status
from msgworker.store import items, jobs
from msgworker.store.audit import inserted
from msgworker.store.bounded import an_id, of_topic, refuse_lacking
from msgworker.store.rows import among_ids
from msgworker.table.build import own_tables
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables, lit


def has_age(t: Tables) -> bool:
    """Whether the table says when a message was finished, or at least made."""
    return t.has("finished_at") or t.has("created_at")


class Old(NamedTuple):
    """What to purge: finished before this instant; dead: also dead messages; topic: only this."""

    before: datetime
    dead: bool = False
    topic: str | None = None


def hides_jobs(t: Tables, old: Old) -> bool:
    """Whether it cannot be seen which jobs are open: their dead messages are left."""
    return old.dead and t.has("job_id") and not jobs.is_there(t)


def _chosen(t: Tables, old: Old, *, hidden: bool = False) -> sa.Select[Any]:
    """The ids of those that ended so long ago. A dead message that holds its object back, or an
    open job, has not ended. hidden: the dead ones that `hides_jobs` leaves."""
    c = t.cols()
    ended: ColumnElement[bool] = c.status == lit(Status.DONE)
    if old.dead:
        over = sa.and_(c.status == lit(Status.FAILED), sa.not_(t.unfinished(c)))
        _, by_job = jobs.holds_up(t, c)
        if hides_jobs(t, old):
            by_job = c["job_id"].is_not(None)
        if hidden and by_job is not None:
            ended = sa.and_(over, by_job)
        else:
            ended = sa.or_(ended, over if by_job is None else sa.and_(over, sa.not_(by_job)))
    # Foreign consumers do not fill finished_at.
    times = [utc_of(x) for x in (c.finished_at, c.claimed_at, c.created_at) if x is not None]
    age = sa.func.coalesce(*times) if len(times) > 1 else times[0]
    where = [*t.is_message(c), ended, age < sa.literal(old.before, UtcDateTime())]
    if old.topic is not None:
        refuse_lacking(t, topic=old.topic)
        where += of_topic(c.topic, old.topic)
    return sa.select(c.msg_id).where(*where)


def count(conn: Connection, t: Tables, old: Old, *, hidden: bool = False) -> int:
    """How many messages are old enough. hidden: see `_chosen`."""
    query = _chosen(t, old, hidden=hidden)
    query = query.with_only_columns(sa.func.count(), maintain_column_froms=True)
    return int(conn.execute(query).scalar_one())


def page(
    conn: Connection, t: Tables, old: Old, *, after: int | None, limit: int, hidden: bool = False
) -> list[int]:
    """The next messages that are old enough, by msg_id, behind `after`. hidden: see `_chosen`."""
    query = _chosen(t, old, hidden=hidden).order_by(t.cols().msg_id).limit(limit)
    return list(conn.scalars(query if after is None else query.where(t.cols().msg_id > after)))


def lock(conn: Connection, t: Tables, ids: Sequence[int], old: Old) -> list[int]:
    """Lock those that are still old enough; at most `max_ids` ids. A rerun may have been faster."""
    c = t.cols()
    query = _chosen(t, old).where(t.among(c.msg_id)).order_by(c.msg_id)
    if t.database.row_locks:
        query = query.with_for_update()
    return list(conn.scalars(query, {"mw_ids": list(ids)}))


def delete(conn: Connection, t: Tables, ids: Sequence[int], beside: Sequence[sa.Table]) -> int:
    """Delete messages that are locked, and what stands about them in our tables `beside` it. How
    many are gone: a trigger may keep some, or put them back, without an error."""
    for table in beside:
        where = (table.c.table_name.in_(names(t)), t.among(table.c.msg_id))
        conn.execute(sa.delete(table).where(*where), {"mw_ids": list(ids)})
    these = t.among(t.cols().msg_id)
    deleted = conn.execute(sa.delete(t.message).where(these), {"mw_ids": list(ids)}).rowcount
    if not t.on_delete:
        return deleted
    there = conn.scalar(sa.select(sa.func.count()).where(these), {"mw_ids": list(ids)})
    return min(deleted, len(ids) - int(there or 0))


def names(t: Tables) -> list[str]:
    """How our tables name the message table."""
    return sorted({t.spec.name, t.message.name, t.label, items.label(t.spec)})


def beside(conn: Connection, t: Tables) -> list[sa.Table]:
    """Our tables that hold something about single messages, as far as they are there."""
    inspector = sa.inspect(conn)
    keyed = [table for table in own_tables(t) if {"table_name", "msg_id"} <= set(table.c.keys())]
    return [x for x in keyed if inspector.has_table(x.name, schema=x.schema)]


# ---------------------------------------------------------------- what is left of messages
#
# A message that was rerun, and deleted when it was done, leaves its tries and items behind, and so
# does one that its owner deletes.


def begins(conn: Connection, t: Tables) -> list[tuple[sa.Table, str, int]]:
    """Where to look for it: each of our tables, how it names the message table, and a place behind
    which to begin: the first, and one that chance chooses, so that of a large table, of which a
    purge looks at a part, one after the other comes to all. None where a policy hides messages from
    this login: those are not gone."""
    if policies_of(conn, [t.message]):
        return []
    found = []
    for table, name in product(beside(conn, t), names(t)):
        ends = (sa.select(end(table.c.msg_id)) for end in (sa.func.min, sa.func.max))
        first, last = (conn.scalar(end.where(table.c.table_name == name)) for end in ends)
        if first is not None and last is not None:
            found.append((table, name, first - 1))
            found.append((table, name, first - 1 + secrets.randbelow(last - first + 1)))
    return found


def sweep(
    conn: Connection, t: Tables, table: sa.Table, name: str, *, after: int, rows: int
) -> int | None:
    """Delete what is left of messages, among the next rows of one of our tables behind `after`;
    returns where to go on, None at the end. A row that is no message of this App is there, too."""
    t = replace(t, where=(), _built={})
    c, key = table.c, t.cols().msg_id
    page = sa.select(c.msg_id).where(c.table_name == name, c.msg_id > an_id(after))
    found = list(conn.scalars(page.order_by(c.msg_id).limit(rows)))
    ids = sorted(set(found))
    there = {row[0] for row in among_ids(conn, t, sa.select(key).where(t.among(key)), ids)}
    gone = [i for i in ids if i not in there]
    delete = sa.delete(table).where(c.table_name == name, t.among(c.msg_id))
    for portion in t.portions(gone):
        conn.execute(delete, {"mw_ids": portion})
    return int(found[-1]) if len(found) == rows else None


# ---------------------------------------------------------------- the archive


class Archive(NamedTuple):
    """An archive table, which of its columns takes which of the message table's, and which it
    lacks. unlike: those of other types, as texts, by the column of the message table."""

    table: sa.Table
    source: list[sa.Column[Any]]
    names: list[str]
    lacking: Sequence[sa.Column[Any]]
    unlike: dict[str, str]


def archive_name(t: Tables, name: str, ours: Collection[str | None] = ()) -> MessageTable:
    """The name of an archive table, checked; raises ConfigError. ours: the schemas of the message
    table, if known."""
    spec = MessageTable(name)
    own = spec.schema is None or spec.schema in (t.spec.schema, *ours)
    if own and spec.bare_name.lower() == t.spec.bare_name.lower():
        raise ConfigError(f"the archive table cannot be the message table {t.spec.name} itself")
    if len(spec.bare_name.encode()) > t.database.max_name:
        raise ConfigError(
            f"the name {name} is longer than the {t.database.max_name} bytes that "
            f"{t.database.name} takes"
        )
    return spec


def open_archive(conn: Connection, t: Tables, name: str) -> Archive:
    """The archive table, for every column of the message table; made if it is not there. Raises
    SchemaError for a type that no DDL of ours can name."""
    spec = archive_name(t, name, _schemas_of(conn, t.message))
    schema = spec.schema or t.spec.schema
    live = _read(conn, t.message.name, t.message.schema)
    kinds = column_types(conn, live)
    wanted = [c for c in live.c if c.computed is None]
    if not sa.inspect(conn).has_table(spec.bare_name, schema=schema):
        options = t.database.own_table_options()
        ids = t.names["msg_id"] if t.database.partitioned else ""  # which have no key there
        copies = [_copied(c, kinds, c.primary_key or c.name == ids) for c in wanted]
        made = sa.Table(spec.bare_name, sa.MetaData(), *copies, schema=schema, **options)
        made.create(conn, checkfirst=True)
    found = _read(conn, spec.bare_name, schema)
    have = {c.name.lower(): c.name for c in found.c}
    lacking = [_copied(c, kinds) for c in wanted if c.name.lower() not in have]
    names = [have.get(c.name.lower(), c.name) for c in wanted]
    theirs = column_types(conn, found)
    types = {
        c.name: (theirs.get(name), kinds[c.name]) for c, name in zip(wanted, names, strict=True)
    }
    unlike = {name: f"{its}, not {own}" for name, (its, own) in types.items() if its != own}
    return Archive(found, wanted, names, lacking, unlike)


def _schemas_of(conn: Connection, table: sa.Table) -> set[str | None]:
    """Those under which a table is found: its own, else the default one and, on PostgreSQL, the one
    in which the search_path finds it."""
    if table.schema is not None:
        return {table.schema}
    query = of(conn).found_schema
    found = asked(conn, query, table).scalar() if query else None
    return {None, sa.inspect(conn).default_schema_name, found}


def _read(conn: Connection, name: str, schema: str | None) -> sa.Table:
    with of_any_type():
        return sa.Table(name, sa.MetaData(), schema=schema, autoload_with=conn)


def _copied(
    c: sa.Column[Any], kinds: Mapping[str, str], is_key: bool | None = None
) -> sa.Column[Any]:
    """is_key: None = an added column, which takes NULL."""
    kind: Any = c.type
    if isinstance(kind, sa.types.NullType):
        if kinds[c.name] == repr(kind):
            raise SchemaError(
                f"the type of column {c.name} is not known to msgworker: make the archive table "
                "yourself, with the columns of the message table"
            )
        kind = NamedType(kinds[c.name])
    if is_key is None:
        return sa.Column(c.name, kind)
    return sa.Column(c.name, kind, primary_key=is_key, autoincrement=False, nullable=c.nullable)


def archive(conn: Connection, t: Tables, into: Archive, ids: Sequence[int]) -> int:
    """Copy messages that are locked; returns how many were."""
    source = _source(t, into)
    chosen = sa.select(*source.c).where(t.among(source.c[t.names["msg_id"]]))
    insert = sa.insert(into.table).from_select(into.names, chosen)
    return inserted(conn, insert, {"mw_ids": list(ids)})


def _source(t: Tables, into: Archive) -> sa.TableClause:
    columns: list[Any] = [sa.column(c.name, c.type) for c in into.source]
    return sa.table(t.message.name, *columns, schema=t.message.schema)


def altered(conn: Connection, t: Tables, into: Archive, ids: Sequence[int]) -> str:
    """What the archive has not kept of messages that were copied, in words; "" = it has all. A
    database rounds what it stores, and one that is not strict cuts it short, without an error.
    Columns of the same types keep everything, and are not compared."""
    if not into.unlike:
        return ""
    source, key = _source(t, into), t.names["msg_id"]
    pairs = {
        c.name: (into.table.c[n], source.c[c.name])
        for c, n in zip(into.source, into.names, strict=True)
    }
    same = [_is_kept(t, *pairs[name]) for name in into.unlike if name != key]
    copied = sa.exists().where(pairs[key][0] == pairs[key][1], *same)
    kept = sa.select(sa.func.count()).select_from(source).where(t.among(source.c[key]), copied)
    if conn.scalar(kept, {"mw_ids": list(ids)}) == len(ids):
        return ""
    types = ", ".join(f"{name} is {said}" for name, said in into.unlike.items())
    return f"the archive table {into.table.name} does not keep the message as it is: {types}"


def _is_kept(t: Tables, its: ColumnElement[Any], own: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a column of the archive has a value as it is; one of JSON has it."""
    if isinstance(its.type, sa.JSON):
        return sa.true()
    if t.database.loose_types:
        its, own = sa.cast(its, sa.Text()), sa.cast(own, sa.Text())
    elif t.database.reads_texts:
        known = not isinstance(own.type, sa.types.NullType)
        its, own = bytewise(sa.cast(its, own.type) if known else its), bytewise(own)
    elif all(isinstance(one.type, sa.String | sa.JSON) for one in (its, own)):
        its, own = bytewise(its), bytewise(own)
    return its.is_not_distinct_from(own)
