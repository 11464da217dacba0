"""What the message table must be like in which no message is lost or stranded, beside its columns
and indexes: its layout, CHECKs, triggers and rights; and a trial of a message's life, which shows
what the catalogue does not say. A start and `create` refuse what is needed of it."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError

from msgworker.counted import plural
from msgworker.db.catalogue import Policies, whole_end
from msgworker.db.connections import connected, returned
from msgworker.db.database import Database, IdSource, LiveIndex, Trouble
from msgworker.db.errors import raise_lost, reason_of, trouble
from msgworker.db.types import AnyId, KeyText
from msgworker.errors import SchemaError
from msgworker.message import DEFAULT_TOPIC
from msgworker.schema import describe
from msgworker.schema.describe import ROWS, Live, is_unique, max_error, rows_written
from msgworker.schema.difference import of_columns, read
from msgworker.schema.repairs import REMAKE, Fault, faults_text, unchecked
from msgworker.store.rows import MAX_ID, refuse_at_once
from msgworker.store.send import inserted_values, row_values
from msgworker.table.build import live_names, tables_for
from msgworker.table.columns import REQUIRED
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables


def other_guards(spec: MessageTable, indexes: Iterable[str]) -> list[str]:
    """Of the names of indexes those of guards for another `where`."""
    blank = "_w000000"
    head, _, tail = spec.index_name("guard", blank).lower().rpartition(blank)
    like = re.compile(f"{re.escape(head)}_w[0-9a-f]{{6}}{re.escape(tail)}")
    own = spec.index_name("guard").lower()
    return sorted(name for name in indexes if name != own and like.fullmatch(name))


def lacks_where(spec: MessageTable, indexes: Mapping[str, LiveIndex]) -> str:
    """Why a table with these indexes is not used without a `where`; "" if it may be: it has the
    guard of an App with one, and none of its own."""
    if spec.where or spec.index_name("guard").lower() in indexes:
        return ""
    for name in other_guards(spec, indexes):
        there = indexes[name].where
        which = "" if there is None else f" ({there.strip()})"
        return (
            f"its index {name} is the guard of an App with a where=, to which not all rows are "
            f"messages{which}. Name that App, or give its where (the setting of this name); if "
            "no App has one any more, drop that index"
        )
    return ""


def faults(live: Live) -> list[Fault]:
    """Everything that is not as it must or should be. Where the rows have to move to another table
    no statement repairs this one: some databases refuse to change it as it is."""
    fixes = {layout: live.database.drop_layout(live.name, layout) for layout in live.layouts}
    layouts = [
        Fault(
            "storage",
            layout != "shared",
            f"table {live.name} {LAYOUTS[layout]}",
            (fix,) if fix else (),
        )
        for layout, fix in fixes.items()
    ]
    found = [*layouts, *_unlogged(live), *_partitions(live), *of_columns(live)]
    found += [*_checks(live), *_replacing(live), *_policies(live), *_triggers(live)]
    moves = any(fault.needed and not fault.fix for fault in layouts)
    return [replace(fault, fix=()) for fault in found] if moves else found


def needed(live: Live) -> list[Fault]:
    """The faults that would lose or strand a message."""
    return [fault for fault in faults(live) if fault.needed]


def only_anew(live: Live) -> bool:
    """Whether no statement makes the table fit: it has partitions that are tables, or a column that
    must be there is of a type that no statement changes."""
    if {"parent", "heirs", "heir", "view", "foreign"} & set(live.layouts):
        return True
    return not live.database.loose_types and any(
        fault.role in REQUIRED and not fault.fix for fault in needed(live)
    )


def of_ids(conn: Connection, inspector: Inspector, live: Live) -> list[Fault]:
    """What is wrong where no index keeps `msg_id` unique: a key of several columns does not."""
    column = live.columns.get("msg_id")
    if column is None or live.partitions is not None:
        return []
    name = column.name
    if is_unique(inspector, live.spec, name):
        return []
    text = f"column {name} is not unique: it must be the primary key, alone, or have a unique index"
    quote = live.sql.identifier_preparer.quote
    ids: sa.ColumnClause[Any] = sa.column(name)
    twice = sa.select(ids).select_from(sa.table(live.spec.bare_name, schema=live.spec.schema))
    found = conn.scalars(twice.group_by(ids).having(sa.func.count(ids) > 1).limit(3)).all()
    if found:
        shown = ", ".join(map(str, found))
        text += f"; some ids are there more than once ({shown}, say)"
        return [Fault("columns", True, text)]
    index = quote(live.spec.index_name("guard").removesuffix("_guard") + "_id")
    fix = f"CREATE UNIQUE INDEX {index} ON {live.name} ({quote(name)})"
    return [Fault("columns", True, text, (fix,))]


def refuse_unfit(inspector: Inspector, spec: MessageTable, database: Database) -> Live:
    """Read the message table; raises SchemaError where something is needed of it."""
    conn = describe.on(inspector)
    if problems := describe.weak_storage(inspector, spec):
        raise SchemaError(f"table {spec.name} cannot be used: {problems[0]}")
    as_is = read(conn, inspector, spec, database)
    if found := needed(as_is) or of_ids(conn, inspector, as_is):
        raise SchemaError(f"table {spec.name} cannot be used: {faults_text(found)}")
    return as_is


def refuse_at_trial(engine: Engine, as_is: Live) -> None:
    """Raise SchemaError for a table on which, as `trial` finds, a message is not handled."""
    spec, kinds = as_is.spec, {column.name: column.kind for column in as_is.all.values()}
    if set(REQUIRED) - set(live_names(spec, kinds)):
        return  # they are asked for
    conn = connected(engine)
    with returned(conn):
        found = [f for f in trial(conn, tables_for(spec, as_is.database, kinds), as_is) if f.needed]
    if found:
        raise SchemaError(f"table {spec.name} cannot be used: {faults_text(found)}")


LAYOUTS = {
    "versions": (
        "keeps the old versions of its rows, and so allows no index of ours: copy its rows into a "
        "table that `msgworker ddl --dialect NAME` prints. Where the old versions are of no use, "
        "`ALTER TABLE ... DROP SYSTEM VERSIONING` deletes all of them, for good"
    ),
    "partitions": "has partitions, and no index over all of them that keeps its messages apart",
    "parent": (
        "has partitions, but not by HASH of its objects alone, so that no index over all of them "
        "keeps two messages of one object apart: copy its rows into a table that `msgworker ddl "
        "--dialect NAME` prints; the archive of a purge may have partitions of any kind"
    ),
    "heirs": (
        "has tables that inherit from it, whose rows no index of its own keeps apart: two messages "
        "of one object could run at once, and two have one id. Copy the rows into a table that "
        "`msgworker ddl --dialect NAME` prints"
    ),
    "heir": (
        "is a part of another table (it inherits from it, or is a partition of it), where messages "
        "of the same objects may stand, which no index of this one keeps apart: name the other "
        "table, or copy the rows into a table of their own"
    ),
    "sharing": (
        "would share pauses, limits, the rule, and the items of messages with the same id, with a "
        "table of the same name in another schema: the search_path finds one msgworker_lease, "
        'msgworker_item, ... for both. Name its schema, MessageTable("schema.table")'
    ),
    "shared": (
        "shares pauses, limits, the rule, and the items of messages with the same id, with a table "
        "of the same name in another schema: the search_path finds one msgworker_lease, "
        "msgworker_item, ... for both. Stop all instances of one of them, until it has no message "
        'at 1, then name its schema, MessageTable("schema.table"), in all programs: its rule, '
        "schedules, jobs, pauses, limits and items begin anew"
    ),
    "view": "is a view, on which no index can be: name the table under it",
    "foreign": (
        "is a foreign or virtual table, on which no index can be: let the App connect to the "
        "database that has its rows, or copy them into a table"
    ),
}


def _unlogged(live: Live) -> Iterator[Fault]:
    if live.unlogged:
        text = f"table {live.name} is UNLOGGED: a crash of the server deletes all of its messages, "
        text += "and no standby has them"
        yield Fault("storage", False, text, (live.database.drop_layout(live.name, "unlogged"),))


def _partitions(live: Live) -> Iterator[Fault]:
    """No index can keep ids unique there: one sequence has to. And an object must have a home."""
    if live.partitions is None:
        return
    ids = live.columns.get("msg_id")
    if ids is not None and not ids.counts:
        text = (
            f"column {ids.name} has no identity, and no index over partitions can keep ids unique: "
            f"ALTER TABLE {live.name} ALTER COLUMN {live.sql.identifier_preparer.quote(ids.name)} "
            "ADD GENERATED ALWAYS AS IDENTITY (START WITH the highest id + 1)"
        )
        yield Fault("partitions", True, text)
    there = sum(Fraction(1, modulus) for modulus in live.partitions.values())
    if there != 1:
        text = (
            f"table {live.name} lacks partitions: {1 - there} of the objects can have no messages, "
            "and those that were there are not seen; attach, or create, what is missing"
        )
        yield Fault("partitions", True, text)


def _checks(live: Live) -> Iterator[Fault]:
    for check in live.checks:
        what = f"CHECK {check.name} ({check.text})".replace("CHECK  ", "CHECK ")
        text = f"{what} does not take {', '.join(ROWS[name] for name in check.refuses)}"
        fix = unchecked(live, check)
        if not fix:
            text += f". {REMAKE}" if live.database.loose_types else ""
        yield Fault("checks", True, text, fix)


def _replacing(live: Live) -> Iterator[Fault]:
    """A message that we write to must not delete another one."""
    roles = rows_written(live.spec)["done"].keys() & live.columns.keys()
    written = "|".join(re.escape(live.columns[role].name) for role in sorted(roles))
    for columns in live.replaces:
        if re.search(rf"(?i)\b(?:{written})\b", columns):
            text = f"UNIQUE ({columns}) ON CONFLICT REPLACE deletes the other message where two "
            text += f"become alike, as when they are claimed or end. {REMAKE}"
            yield Fault("checks", True, text)


def _policies(live: Live) -> Iterator[Fault]:
    """What a policy hides is never handled, without a word."""
    if live.policies is None:
        return
    names, may = live.policies
    text = f"row-level security of table {live.name} is on for this login: "
    for letter, what in (("r", "see"), ("w", "change")):
        if not {letter, "*"} & set(may):
            text += f"no policy lets it {what} a row"
            yield Fault("rights", True, f"{text}, so that no message is ever handled{_EXEMPT}")
            return
    text += f"messages that the policies ({names}) hide are never handled, and hold back their"
    yield Fault("rights", False, f"{text} object unseen{_EXEMPT}")


def of_own_policies(found: Iterable[Policies]) -> Iterator[Fault]:
    """The same of our own tables: who does not see the leases of others takes them for dead."""
    for table, names, may in found:
        lacking = [what for letter, what in _ACTS.items() if not {letter, "*"} & set(may)]
        text = f"row-level security of table {table} is on for this login: "
        if lacking:
            yield Fault("rights", True, f"{text}no policy lets it {', '.join(lacking)}{_EXEMPT}")
        else:
            text += f"what the policies ({names}) hide is not there for its instances"
            yield Fault("rights", False, f"{text}{_EXEMPT}")


_ACTS = {"r": "see a row", "a": "insert one", "w": "change one", "d": "delete one"}
_EXEMPT = "; give it all rows (a policy FOR ALL with USING (true)), or BYPASSRLS"


def _triggers(live: Live) -> Iterator[Fault]:
    for name, when in live.triggers:
        if "UPDATE" not in when.upper():
            continue
        if re.match(r"CREATE RULE .+? AS ON UPDATE TO (?!.* DO NOT(HING|IFY .*);$)", when):
            text = f"rule {name} rewrites updates of {live.name}, and no statement that claims a "
            text += "message can be rewritten: let a trigger do what it does, and drop it"
            yield Fault("triggers", True, text)
            continue
        text = (
            f"trigger {name} runs when rows are updated ({when[:100]}): what it refuses or changes "
            "may keep a message from running"
        )
        yield Fault("triggers", False, text)


def highest_id(conn: Connection, key: ColumnElement[Any]) -> int | None:
    """The highest id of the rows of a table."""
    found = conn.scalar(sa.select(sa.func.max(key)))
    return found if isinstance(found, int) else None


def behind(source: IdSource, highest: int) -> str:
    """What is wrong where a sequence gives ids that rows have, or lower ones; "" if nothing."""
    if source.next is None or source.next > highest:
        return ""
    stands = f"stands at {source.next - source.step}" if source.used else "has given no id yet"
    return (
        f"the sequence {source.name} {stands}, but there are ids up to {highest}: new messages "
        "run before those, or cannot be sent"
    )


# --- A message sent, claimed, settled and purged in a transaction that is rolled back.
#
# Nothing of it is ever seen by another session, and no id of the database is used up where the
# database counts them: the message brings one of its own, below zero. Triggers do run. What may
# fail is done within a savepoint, so that errors of a row leave the transaction as it was.

TRIAL = "trial"
ATTEMPTS = 3
"""Another trial, or a message, may have the id that was chosen."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The row of the trial. which: the condition that finds it. ours: made by the trial."""

    which: ColumnElement[bool]
    ours: bool


class _Untried(Exception):
    """No row could be made; args: why."""


class _Refused(_Untried):
    """This login may not make one, or cannot tell it from others."""


def trial(conn: Connection, t: Tables, live: Live) -> list[Fault]:
    """What would happen to a message on this table. The transaction of `conn`, if it is in one, has
    written nothing; it is rolled back.

    Where no message can be inserted, as with columns that others fill, the newest one is changed
    instead. Raises only for a lost connection or a deadline.
    """
    found: list[Fault] = []
    transaction = conn.get_transaction() or conn.begin()  # a deadline may have been set in one
    try:
        found += _tried(conn, t, live)
    except DBAPIError as error:
        raise_lost(error)
    finally:
        if transaction.is_active and not conn.invalidated:
            transaction.rollback()
    return found


def _tried(conn: Connection, t: Tables, live: Live) -> Iterator[Fault]:
    refuse_at_once(conn, t)
    try:
        sent = _send(conn, t, live)
    except _Untried as untried:
        if not isinstance(untried, _Refused):
            text = f"App.send cannot insert into {live.name}: {untried}"
            yield Fault(TRIAL, False, text)
        newest = _newest(conn, t)
        if newest is None:
            return
        sent = newest
    else:
        fault = _without_id(conn, t, live, sent) or _unseen(conn, t, live, sent)
        if fault is not None:
            yield fault
            return
    yield from _written(conn, t, live, sent)
    if sent.ours:
        yield from _purged(conn, t, live, sent)


def _send(conn: Connection, t: Tables, live: Live) -> _Sent:
    """Insert a message as `App.send` does; raises _Untried."""
    if describe.unfilled(live):
        raise _Refused("columns that it does not fill")  # which another check says
    ids = t.cols().msg_id
    if live.database.one_writer and highest_id(conn, ids) == MAX_ID:
        # SQLite says that its disk is full, and ends the transaction with its savepoints.
        raise _Untried(f"there is no higher {ids.name} than that of its last row")
    last: Exception | None = None
    for object_id in (_an_object(t), None):
        for _ in range(ATTEMPTS):
            own = _own_id(live)
            try:
                with conn.begin_nested():
                    return _inserted(conn, t, live, own, object_id)
            except DBAPIError as error:
                raise_lost(error)
                kind = trouble(error)
                if kind in (Trouble.AGAIN, Trouble.REFUSED):
                    raise _Refused(reason_of(error)) from None
                last = error
                if not (isinstance(error, IntegrityError) and kind is Trouble.RACE):
                    break
            except (StatementError, TypeError, ValueError) as error:  # a type that takes no text
                last = error
                break
    raise _Untried(reason_of(last) if isinstance(last, DBAPIError) else str(last))


def _inserted(conn: Connection, t: Tables, live: Live, own: int | None, object_id: Any) -> _Sent:
    priority = live.columns.get("priority")
    row = row_values(
        t,
        topic=DEFAULT_TOPIC,
        object_id=object_id,
        payload='"trial"',
        delay=None,
        at=None,
        priority=0 if priority is not None and priority.must_be_given else None,
    )
    c, ids = t.cols(), t.names["msg_id"]
    values = inserted_values(t, frozenset(row))
    if own is not None:
        values[ids] = own
        conn.execute(sa.insert(t.message).values(values).inline(), row)
        return _Sent(c.msg_id == own, ours=True)
    made = conn.execute(sa.insert(t.message).values(values), row)
    if object_id is not None:
        return _Sent(c.object_id == object_id, ours=True)
    key = made.inserted_primary_key
    if key is None or key[0] is None:
        raise _Refused("its row cannot be told from others without an object")
    return _Sent(c.msg_id == key[0], ours=True)


def _own_id(live: Live) -> int | None:
    """An id that the database would not give; None where it must give it, or gives it back."""
    ids = live.columns["msg_id"]
    unsigned = bool(getattr(ids.kind, "unsigned", False))
    if not ids.counts or ids.always or unsigned or live.database.one_writer:
        return None
    return -1 - secrets.randbelow(min(whole_end(ids.kind), 1 << 62))


def _an_object(t: Tables) -> Any:
    """An id of an object that has no messages; None for a type of which none can be made up."""
    kind = t.message.c[t.names["object_id"]].type
    if isinstance(kind, sa.String):
        text = f"msgworker-trial-{secrets.token_hex(12)}"
        return text[-kind.length :] if kind.length else text
    if isinstance(kind, AnyId | KeyText):
        return f"msgworker-trial-{secrets.token_hex(12)}"
    if isinstance(kind, sa.Uuid):
        return uuid.uuid4()
    if isinstance(kind, sa.Integer):
        return 1 + secrets.randbelow(whole_end(kind))
    return None


def _newest(conn: Connection, t: Tables) -> _Sent | None:
    """The newest message, if it is not locked; None if there is none."""
    c = t.cols()
    query = sa.select(c.msg_id, c.status).where(*t.is_message(c))
    query = query.order_by(c.msg_id.desc()).limit(1)
    if t.database.row_locks and not t.database.blocks:  # who takes blocks locks no limited query
        query = query.with_for_update(skip_locked=t.database.skip_locked)
    try:
        with conn.begin_nested():
            found = conn.execute(query).first()
    except DBAPIError as error:
        raise_lost(error)
        return None  # no right to change it, which other checks say
    if found is None or found[0] is None or found[1] == 1:
        return None
    return _Sent(c.msg_id == found[0], ours=False)


def _without_id(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Fault | None:
    """A row whose id is NULL is found by nothing."""
    ids = live.columns["msg_id"]
    if not ids.nullable or ids.counts:
        return None
    c = t.cols()
    if conn.scalar(sa.select(c.msg_id).where(sent.which)) is not None:
        return None
    if not conn.scalar(sa.select(sa.func.count()).select_from(t.message).where(sent.which)):
        return None
    without = sa.select(sa.func.count()).select_from(t.message).where(c.msg_id.is_(None))
    others = int(conn.scalar(without) or 0) - 1
    text = f"a message that is sent gets no id: column {ids.name} (msg_id) stays NULL, and the "
    text += "message is never handled"
    text += f"; {plural(others, 'row', 'has', 'have')} none" if others > 0 else ""
    fix = () if others > 0 else live.database.set_not_null(live.at(ids.name), ids.kind, ids.rest)
    if live.database.loose_types:
        text += ". Create the table again, with INTEGER PRIMARY KEY, or with NOT NULL if all who "
        text += "insert bring an id"
    elif not fix:
        text += ". Give them ids, and make the column NOT NULL"
    return Fault(TRIAL, True, text, tuple(fix), "msg_id")


def _unseen(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Fault | None:
    try:
        with conn.begin_nested():
            if conn.scalar(sa.select(sa.func.count()).select_from(t.message).where(sent.which)):
                return None
    except DBAPIError as error:
        raise_lost(error)
        return None  # no right to read it, which other checks say
    text = f"a message that is inserted into {live.name} is not there for this login: "
    return Fault(TRIAL, True, text + _hidden_by(live))


def _hidden_by(live: Live) -> str:
    """What may keep rows from being seen, or changed, without an error of the database."""
    names = ", ".join(name for name, _ in live.triggers)
    maybe = ["a policy of row-level security"] if live.policies is not None else []
    maybe += [f"a trigger ({names})" if names else "a trigger or a rule"]
    return f"{' or '.join(maybe)} keeps it away"


def _written(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Iterator[Fault]:
    """Each outcome that is written to a message, one after the other, as they come."""
    rows = rows_written(live.spec, max_error(live.database, live.columns))
    problems: dict[str, list[str]] = {}
    for name in ("claimed", "released", "failed", "dead", "done"):
        problem = _problem(conn, t, live, sent, rows[name])
        if problem:
            problems.setdefault(problem, []).append(ROWS[name])
    for problem, refused in problems.items():
        text = f"table {live.name} does not take {', '.join(refused)}: {problem}"
        yield Fault(TRIAL, True, text, tuple(live.database.identified(conn, live.name, problem)))


def _problem(
    conn: Connection, t: Tables, live: Live, sent: _Sent, row: dict[str, Any]
) -> str | None:
    """Why a message does not become what is written; None if it does, or that is unknown."""
    change = sa.update(t.message).where(sent.which).values(t.values(**row))
    try:
        with conn.begin_nested():
            count = conn.execute(change).rowcount
            if count == 0:
                return f"nothing is changed, without an error: {_hidden_by(live)}"
            status = conn.scalar(sa.select(t.cols().status).where(sent.which))
            flag = sa.and_(sent.which, t.mine(t.cols(), sa.literal(row["claimed_by"])))
            ours = sa.select(sa.func.count()).select_from(t.message).where(flag)
            is_ours = row["status"] != 1 or conn.scalar(ours)
    except DBAPIError as error:
        raise_lost(error)
        kind = trouble(error)
        told = kind is Trouble.REFUSED and live.policies is None  # by other checks
        return None if told or kind in (Trouble.RACE, Trouble.AGAIN) else reason_of(error)
    if status is None or int(status) != row["status"]:
        return f"its status is {status} then: {_hidden_by(live)}"
    if not is_ours:
        return f"its {t.names['claimed_by']} is not what was written: {_hidden_by(live)}"
    return None


def _purged(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Iterator[Fault]:
    try:
        with conn.begin_nested():
            if conn.execute(sa.delete(t.message).where(sent.which)).rowcount:
                return
            reason = f"nothing is deleted, without an error: {_hidden_by(live)}"
    except DBAPIError as error:
        raise_lost(error)
        if trouble(error) in (Trouble.REFUSED, Trouble.AGAIN):
            return  # only a purge needs the right
        reason = reason_of(error)
    fix = live.database.identified(conn, live.name, reason)
    yield Fault(TRIAL, False, f"messages of {live.name} cannot be purged: {reason}", tuple(fix))
