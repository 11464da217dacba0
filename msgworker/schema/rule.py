"""What is recorded of a table in the database: its rule, max_tries and on_dead, the same for all
programs; and the version of its schema.

Final states are stored as numbers: a message is dead because it has as many tries as the rule
allows. So all programs must use the same rule, and a change of the rule must adjust the numbers. It
is a row of `msgworker_lease` with a kind of its own, which never expires. An instance locks and
reads that row when it registers. A change locks it too, checks that no instance is alive, adjusts
the numbers, and records the new rule, all in one transaction. The version is another such row.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Engine, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.counted import plural
from msgworker.db.clock import now, now_plus
from msgworker.db.connections import connecting, ignoring, writing
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.errors import ConfigError, PayloadError, RuleChanged, SchemaError
from msgworker.message import Status, ends_at
from msgworker.payload import decode
from msgworker.store import lease, recover
from msgworker.table.build import HISTORY, LEAST, NEWEST
from msgworker.table.columns import DEFAULT_TRIES, Cols
from msgworker.table.spec import MessageTable
from msgworker.table.tables import ONE, Tables, lit

KIND = "rule"
NEVER_SECONDS = 50 * 366 * 86_400.0
"""After so long the row says that it expires, for those who delete what has expired."""
BLOCK = "block"
BEFORE = "before"
"""Its key of the highest id of the rows that were there when the rule was recorded."""
LOOK_SECONDS = 0.05
ALONE_LOOK_SECONDS = 0.004
AGAIN_SECONDS = 20.0
"""So long what is to be recorded is read again where the database has rolled back the record."""


class Rule(NamedTuple):
    """When a message is dead, and what becomes of its object then; see MessageTable."""

    max_tries: int
    on_dead: str

    @classmethod
    def of(cls, spec: MessageTable) -> Rule:
        return cls(spec.max_tries, spec.on_dead)

    def to(self, spec: MessageTable) -> MessageTable:
        """The same table by this rule."""
        return spec if Rule.of(spec) == self else spec.replace(**self._asdict())

    def __str__(self) -> str:
        return f"max_tries={self.max_tries}, on_dead={self.on_dead}"

    @property
    def ended(self) -> int:
        """From so many tries on a message holds nothing back."""
        return ends_at(self.max_tries, self.on_dead)

    def holds_dead(self, tries: int) -> bool:
        """Whether a dead message with so many tries holds its object back."""
        return self.on_dead == BLOCK and tries < self.ended


class Answer(enum.Enum):
    """The result of a request to change the rule."""

    SAME = "same"  # it is the table's rule
    CHANGED = "changed"  # it is now
    OTHER = "other"  # the recorded rule is not the one that was read: look again
    LOCKED = "locked"  # it is locked: by an instance that registers, or by another change
    BUSY = "busy"  # instances live that work on the table
    HELD = "held"  # messages are flagged by instances that do not live
    DEADLY = "deadly"  # failed messages would become dead by it, which was not requested


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to such a request. count: of what state says: messages that are dead now, or would
    be, instances that live, instances that hold messages."""

    state: Answer
    count: int = 0


# ---------------------------------------------------------------- the record


def read(conn: Connection, t: Tables) -> Rule | None:
    """The recorded rule, None if none is. Raises SchemaError for what is none."""
    found = conn.execute(t.built("rule_read", lambda: _query(t)), {"mw_name": _name(t)}).first()
    return None if found is None else _rule(t, found[0])


def _query(t: Tables) -> sa.Select[Any]:
    c = t.lease.c
    return sa.select(c.serves).where(c.name == bindparam("mw_name"), c.serves.is_not(None))


def _name(t: Tables, kind: str = KIND) -> str:
    name = f"{kind} of {t.label}"  # no id of an instance has a blank
    if len(name.encode()) <= 64:
        return name
    return f"{kind} of {hashlib.sha256(t.label.encode()).hexdigest()[:40]}"


def _rule(t: Tables, text: str) -> Rule:
    try:
        value = json.loads(text)
        rule = Rule(value["max_tries"], value["on_dead"])
        rule.to(t.spec)
    except (ValueError, KeyError, TypeError, ConfigError):
        raise SchemaError(
            f"row {_name(t)!r} of {t.lease.name} is no rule: {text!r:.120}. Its column serves is "
            f'written like {{"table": "{t.message.name}", "max_tries": {DEFAULT_TRIES}, '
            '"on_dead": "continue"}'
        ) from None
    return rule


def _text(t: Tables, rule: Rule, before: Any = None) -> str:
    known = {BEFORE: before} if isinstance(before, int) else {}
    return json.dumps({"table": t.message.name, **rule._asdict(), **known})


def record(conn: Connection, t: Tables) -> None:
    """Record the rule of `t`, the first one, and how far rows of a table with a name of its own go
    back before it. In the caller's transaction; raises IntegrityError where there is one by now."""
    highest = None if t.spec.is_default else conn.scalar(sa.select(sa.func.max(t.cols().msg_id)))
    c, text = t.lease.c, _text(t, Rule.of(t.spec), highest)
    emptied = sa.update(t.lease).where(c.name == _name(t), c.serves.is_(None))
    if not conn.execute(emptied.values(serves=text)).rowcount:
        conn.execute(_inserting(t, KIND, text))


def recording(t: Tables) -> sa.Insert:
    """The statement that records the rule of `t`, where there is no row for it."""
    return _inserting(t, KIND, _text(t, Rule.of(t.spec)))


def _inserting(t: Tables, kind: str, text: str) -> sa.Insert:
    values = {
        "name": _name(t, kind),
        "kind": kind,
        "started_at": now(),
        "renewed_at": now(),
        "expires_at": now_plus(sa.literal(NEVER_SECONDS, sa.Float())),
        "serves": text,
    }
    return sa.insert(t.lease).values(values)


def has_row(conn: Connection, t: Tables) -> bool:
    """Whether there is a row for the rule, even an empty one."""
    query = sa.select(sa.func.count()).where(t.lease.c.name == _name(t))
    return bool(conn.scalar(query))


def made_for(spec: MessageTable, indexes: Iterable[str]) -> list[Rule]:
    """The rules that indexes of a table were made for: they are in the names."""
    found = []
    for name in (name for name in indexes if name.endswith("_object")):
        match = re.search(r"_t(\d{1,4})(b?)_object$", name)
        rules = [Rule(DEFAULT_TRIES, "continue")]
        if match is not None and 0 < int(match[1]) <= 1000:
            rules.append(Rule(int(match[1]), BLOCK if match[2] else "continue"))
        found += [rule for rule in rules if rule.to(spec).index_name("object") == name]
    return found


def assumed(spec: MessageTable, indexes: Iterable[str]) -> Rule:
    """The rule of a table of which none is recorded: that of `spec`, unless the indexes of another
    one are there, and none of its own."""
    rules = made_for(spec, indexes)
    own = Rule.of(spec)
    return rules[0] if len(rules) == 1 and own not in rules else own


def recorded_of(engine: Engine, t: Tables) -> Rule:
    """The recorded rule of a table; where none is, that of `t` is recorded."""
    until = time.monotonic() + AGAIN_SECONDS
    while True:
        with connecting(engine) as conn:
            found = read(conn, t)
        if found is not None:
            return found
        with _perhaps_recorded(until), writing(engine) as conn:
            record(conn, t)


@contextmanager
def _perhaps_recorded(until: float) -> Iterator[None]:
    """Lets no error pass that says that another program has recorded it first, or may have: on
    Galera one on another node ends our COMMIT like a deadlock. until: in monotonic seconds, when a
    deadlock is an error."""
    try:
        yield
    except DBAPIError as error:
        kind = trouble(error)
        if kind is not Trouble.RACE and (kind is not Trouble.AGAIN or time.monotonic() > until):
            raise


# ---------------------------------------------------------------- working by it


def hold(conn: Connection, t: Tables) -> bool:
    """Lock the rule against changes until the end of the caller's transaction; False if it is being
    changed, or is locked otherwise.

    Where none is recorded, that of `t` is. Raises RuleChanged if it is not that of `t`.
    """
    found = _locked(conn, t, shared=t.database.share_locks)
    if found is None:
        if read(conn, t) is not None:
            return False
        record(conn, t)
    elif found != Rule.of(t.spec):
        raise RuleChanged(t.spec.name, str(Rule.of(t.spec)), str(found))
    elif t.database.certifies:  # a change on another server is then in conflict
        c = t.lease.c
        conn.execute(sa.update(t.lease).where(c.name == _name(t)).values(renewed_at=now()))
    return True


def look_seconds(t: Tables) -> float:
    """After so long who finds it locked looks again. Where only one can hold the lock, each step of
    an operation does (ops/operation.py): then often enough to come between two of them."""
    return ALONE_LOOK_SECONDS if locks_alone(t) else LOOK_SECONDS


def locks_alone(t: Tables) -> bool:
    """Whether only one at a time can hold the rule, although it is never changed."""
    return t.database.row_locks and not t.database.share_locks


def _locked(conn: Connection, t: Tables, *, shared: bool) -> Rule | None:
    """Lock and read it; None if it is missing or locked: a suspended process may hold the lock."""

    def build() -> sa.Select[Any]:
        if not t.database.row_locks:
            return _query(t)
        return _query(t).with_for_update(read=shared, skip_locked=t.database.skip_locked)

    query = t.built(("rule_locked", shared), build)
    found = conn.execute(query, {"mw_name": _name(t)}).first()
    return None if found is None else _rule(t, found[0])


def living(conn: Connection, t: Tables) -> list[str]:
    """The instances that are alive on this table, or may be."""
    return [
        one.name
        for one in lease.read_all(conn, t)
        if one.live and one.taken_by is None and one.served.table in (None, t.label)
    ]


# ---------------------------------------------------------------- changing it


def change(conn: Connection, t: Tables, wanted: Rule, *, may_bury: bool = False) -> Verdict:
    """Make `wanted` the rule, if no instance is alive; t: the tables by the rule that was read.

    may_bury: also where failed messages are dead by it.

    In the caller's transaction, which nothing may precede. What has ended stays so, what holds its
    object back as a dead message goes on to under on_dead="block", and what has failed more often
    than the new rule allows is dead.
    """
    found = _locked(conn, t, shared=False)
    if found is None:
        return Verdict(Answer.OTHER if read(conn, t) is None else Answer.LOCKED)
    if found == wanted:
        return Verdict(Answer.SAME)
    if found != Rule.of(t.spec):
        return Verdict(Answer.OTHER)
    if live := living(conn, t):
        return Verdict(Answer.BUSY, len(live))
    if held := recover.owners(conn, t):
        return Verdict(Answer.HELD, len(held))
    if not may_bury and (dying := would_die(conn, t, wanted)):
        return Verdict(Answer.DEADLY, dying)
    died = _bury(conn, t, wanted)
    _renumber(conn, t, found, wanted)
    c = t.lease.c
    text = _text(t, wanted, _before(conn, t))
    values = {"serves": text, "term": c.term + 1, "renewed_at": now()}
    conn.execute(sa.update(t.lease).where(c.name == _name(t)).values(values))
    return Verdict(Answer.CHANGED, died)


def would_die(conn: Connection, t: Tables, wanted: Rule) -> int:
    """How many failed messages would be dead by another rule."""
    query = t.hinted(sa.select(sa.func.count()).select_from(t.message), t.message, "failed")
    return int(conn.execute(query.where(*_too_often(t, wanted))).scalar_one())


def _too_often(t: Tables, wanted: Rule) -> list[ColumnElement[bool]]:
    c = t.cols()
    return [t.failed_rows(c), t.tries_left(c), t.tries(c) >= lit(wanted.max_tries)]


def _bury(conn: Connection, t: Tables, wanted: Rule) -> int:
    """What has failed as often as the new rule allows, or more often; return how many."""
    tries = {"error_try_times": lit(wanted.max_tries)} if wanted.on_dead == BLOCK else {}
    values = t.values(finished_at=now(), available_at=sa.null(), **tries)
    if not values:
        return would_die(conn, t, wanted)
    dying = sa.update(t.message).where(*_too_often(t, wanted)).values(values)
    return int(conn.execute(dying).rowcount)


def _renumber(conn: Connection, t: Tables, old: Rule, new: Rule) -> None:
    """What was dead before stays what it was: its tries are those of the new rule, where the old
    ones would mean something else."""
    c = t.cols()
    cases = list(_renumbered(t, c, old, new))
    if not cases:
        return
    moved = sa.case(*cases, else_=c.error_try_times)
    update = sa.update(t.message).where(t.failed_rows(c), sa.or_(*(which for which, _ in cases)))
    conn.execute(update.values({t.names["error_try_times"]: moved}))


def _renumbered(
    t: Tables, c: Cols, old: Rule, new: Rule
) -> Iterable[tuple[ColumnElement[bool], ColumnElement[int]]]:
    """Which dead rows get which number of tries; no row is meant twice."""
    tries = t.tries(c)
    too_few = old.max_tries < new.max_tries
    too_many = old.max_tries > new.max_tries and new.on_dead == BLOCK
    if old.on_dead == BLOCK and (too_few or too_many):
        yield tries == lit(old.max_tries), lit(new.max_tries)
    if old.ended < new.ended:
        ended = sa.and_(tries >= lit(old.ended), tries < lit(new.ended))
        yield ended, lit(new.ended)


# ---------------------------------------------------------------- rows from before the rule

COUNTED, SAMPLE = 10_000, 100
EVERY = 2**63 - 1


def legacy(conn: Connection, t: Tables, *, untouched: bool = False) -> str | None:
    """What an instance will handle of the rows that were in the table before msgworker, as a
    sentence; None if there is none, or if an instance has worked on the table already. untouched:
    none has, since not even its tables are there. `conn` commits each statement."""
    if t.spec.is_default:
        return None
    before = EVERY if untouched else _before(conn, t)
    if before is None or (not untouched and _worked(conn, t)):
        return None
    c = t.cols()
    indexed = t.indexes is not None and t.spec.index_name("object") in t.indexes
    rows: Any = sa.select(c.status.label("s"), c.msg_id.label("i"))
    if indexed:
        rows = t.hinted(rows, t.message, "object").where(t.open_rows(c))
    rows = rows.where(t.claimable(c), c.msg_id <= sa.literal(before, sa.BigInteger()))
    some = rows.limit(COUNTED).subquery("b").c
    groups = sa.select(some.s, sa.func.count(), sa.func.min(some.i)).group_by(some.s)
    found = {Status(int(status)): (count, first) for status, count, first in conn.execute(groups)}
    if not found:
        return None
    total = sum(count for count, _ in found.values())
    words = ((Status.NEW, "new"), (Status.FAILED, "failed with tries left"))
    said = [f"{found[status][0]:,} {word}" for status, word in words if status in found]
    return (
        f"{'at least ' if total >= COUNTED else ''}{plural(total, 'row')} from before msgworker "
        f"would be handled ({', '.join(said)}; message {min(first for _, first in found.values())} "
        "first), as soon as an instance has a handler for them: discard those that must not "
        f"be: `msgworker discard ID --reason TEXT`{_unreadable(conn, t, rows)}"
    )


def _unreadable(conn: Connection, t: Tables, rows: sa.Select[Any]) -> str:
    """What becomes of those of some rows whose payload is not JSON; empty if there is none. Only a
    sample of them is read."""
    if not t.has("payload"):
        return ""
    ids, bad = [row.i for row in conn.execute(rows.limit(SAMPLE))], list[int]()
    for row in recover.read(conn, t, ids):
        try:
            decode(row.payload)
        except PayloadError:
            bad.append(row.msg_id)
    if not bad:
        return ""
    return (
        f". The payload of {len(bad)} of {len(ids)} that were read is not JSON (message "
        f"{min(bad)}): such a message is dead at once, and its handler is not called. If the "
        "payloads are of another kind, use MessageTable(payload=None): the handler reads them by "
        "msg_id"
    )


def _before(conn: Connection, t: Tables) -> int | None:
    """The highest id of the rows from before; all rows are where no rule is recorded yet."""
    found = conn.execute(t.built("rule_read", lambda: _query(t)), {"mw_name": _name(t)}).first()
    if found is None:
        return EVERY
    highest = json.loads(found[0]).get(BEFORE)
    return highest if isinstance(highest, int) else None


def _worked(conn: Connection, t: Tables) -> bool:
    """Whether an instance has worked on the table, as far as this login can see."""
    for table in (t.failed_try, HISTORY.of(t)):
        if table.name in t.missing:
            continue
        name = table.c.table_name
        query = sa.select(name).where(name == bindparam("mw_table")).limit(1)
        with ignoring(Trouble.REFUSED):
            if conn.execute(query, {"mw_table": t.label}).first() is not None:
                return True
    return False


# ---------------------------------------------------------------- the version of the schema

VERSION = "schema"
"""The kind of its row."""


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """The version that is recorded. least: the oldest one whose code may work on it. Code of an
    older one is refused at its start."""

    version: int
    least: int


def read_version(conn: Connection, t: Tables) -> RecordedVersion | None:
    """The recorded version; None where none is, or what is there is none."""
    return _version(conn, t)[1]


def _version(conn: Connection, t: Tables) -> tuple[int | None, RecordedVersion | None]:
    """The term of its row, and what that says; each None where there is none."""

    def build() -> sa.Select[Any]:
        return sa.select(t.lease.c.term, t.lease.c.serves).where(
            t.lease.c.name == bindparam("mw_name")
        )

    known = {"mw_name": _name(t, VERSION)}
    row = conn.execute(t.built("schema_version", build), known).first()
    if row is None:
        return None, None
    try:
        value = json.loads(row.serves or "")
        return row.term, RecordedVersion(int(value["version"]), int(value["least"]))
    except (ValueError, KeyError, TypeError):
        return row.term, None


def recording_version(conn: Connection | None, t: Tables) -> sa.Insert | sa.Update | None:
    """The statement that records the version of this package; None where it, or a newer one, is
    recorded. It changes only the row that was read. conn: None where the table is to be made."""
    seen, found = (None, None) if conn is None else _version(conn, t)
    if found is not None and found.version >= NEWEST:
        return None
    text = json.dumps({"table": t.message.name, "version": NEWEST, "least": LEAST})
    if seen is None:
        return _inserting(t, VERSION, text)
    c, term = t.lease.c, sa.literal_column(str(seen), sa.BigInteger())
    change = sa.update(t.lease).where(c.name == _name(t, VERSION), c.term == term)
    return change.values({"renewed_at": now(), "serves": text, "term": c.term + ONE})


def record_version(engine: Engine, t: Tables) -> None:
    """Record the version of tables that are complete, unless it is recorded, or a newer one."""
    until = time.monotonic() + AGAIN_SECONDS
    while True:
        with connecting(engine) as conn:
            statement = recording_version(conn, t)
        if statement is None:
            return
        with _perhaps_recorded(until), writing(engine) as conn:
            conn.execute(statement)


def check_version(conn: Connection, t: Tables) -> None:
    """Raise SchemaError if code of this version may not work on the schema."""
    found = read_version(conn, t)
    if found is not None and found.least > NEWEST:
        raise SchemaError(
            f"the schema of {t.spec.name} is version {found.version}, on which only code of "
            f"version {found.least} or later may work, and this package knows {NEWEST}: install "
            "the msgworker that has upgraded it, or a later one"
        )
