"""Random tables to adopt: they work, or the start refuses them and says what mends them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from hypothesis import strategies as st
from tenacity.wait import wait_fixed

from msgworker import App, ConfigError, Message, MessageTable, SchemaError
from msgworker.doctor import Severity
from proof.fuzz.kinds import (
    ACTS,
    ANY,
    FINE,
    GENERATED,
    INSTANTS,
    KEYS,
    NAMES,
    NUMBERS,
    OF_NUMBERS,
    OF_TEXTS,
    OPTIONAL,
    SAID,
    SESSIONS,
    WHOLE,
)
from tests.engines import plain_engine

OBJECTS = ("a", "b", "a", "a", "b")
ACTED_ON = 2  # the message to which something is done, if not to each
MOST_STARTS = 4
SECONDS = 30.0
VALUES = ("'a'", "'b'", "1", "2", "'2024-01-01'", "'1c0ffee0-0000-4000-8000-00000000000a'", "true")
"""Of a column that must be given, tried in turn."""
WHOLE_SAID = ("storage engine", "has partitions", "old versions", "pool", "isolation level", "act")
"""Refusals that name no column."""
MENDS = re.compile(
    r"ALTER TABLE|create the table again|MessageTable\(|primary key|init-db|columns? |QueuePool"
    r"|\(act\)|drop it"
)
POOLS: Mapping[str, Mapping[str, Any]] = {
    "NullPool": {"poolclass": sa.NullPool},
    "StaticPool": {"poolclass": sa.StaticPool},
    "of one": {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0},
}


@dataclass(frozen=True)
class Described:
    """A table as a DBA has made it: role -> type and what else is said of the column.

    key: a constraint among the columns. act: what is done to an UPDATE that writes which status,
    and of which message, None = each. session: see SESSIONS.
    """

    columns: Mapping[str, str]
    rest: str = ""
    key: str = ""
    act: tuple[str, int, int | None] | None = None
    session: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_hindered(self) -> bool:
        """Whether the database may refuse an outcome."""
        unique = any(" UNIQUE" in kind for role, kind in self.columns.items() if role != "msg_id")
        return unique or self.act is not None or bool(self.key)


def described(database: str) -> st.SearchStrategy[Described]:
    """Tables of which up to three columns are of any type, or say something odd."""
    acts = st.tuples(
        st.sampled_from(list(ACTS[database])),
        st.sampled_from([1, 2, -1]),
        st.sampled_from([None, ACTED_ON]),
    )
    some = st.lists(st.sampled_from(list(OPTIONAL)), unique=True)
    odd = st.lists(st.sampled_from(list(NAMES)), max_size=3, unique=True)
    return some.flatmap(
        lambda there: odd.flatmap(
            lambda strange: st.builds(
                Described,
                st.fixed_dictionaries(
                    {
                        role: _odd(database, role) if role in strange else _fine(database, role)
                        for role in NAMES
                        if role not in OPTIONAL or role in there or role in strange
                    }
                ),
                st.sampled_from(WHOLE[database]),
                st.sampled_from(KEYS),
                st.one_of(st.none(), st.none(), acts),
                st.sampled_from(SESSIONS[database]),
            )
        )
    )


def _fine(database: str, role: str) -> st.SearchStrategy[str]:
    if role == "msg_id":
        return st.sampled_from(FINE[database]["msg_id"]).map(lambda kind: f"{kind} PRIMARY KEY")
    kind = "number" if role in NUMBERS else "instant" if role in INSTANTS else "text"
    kinds = st.sampled_from(FINE[database][kind])
    if role in ("status", "error_try_times"):
        return st.builds(
            "{} {}".format, kinds, st.sampled_from(["NOT NULL DEFAULT 0", "DEFAULT 0"])
        )
    return kinds


def _odd(database: str, role: str) -> st.SearchStrategy[str]:
    known = (*SAID, *(OF_NUMBERS if role in NUMBERS else OF_TEXTS))
    said = st.sampled_from(known).map(lambda text: text.format(c=quoted(database, NAMES[role])))
    generated = st.sampled_from(GENERATED[database])
    words = st.one_of(st.just(""), st.just(""), said, generated)
    anything = st.builds("{} {}".format, st.sampled_from(ANY[database]), words)
    fine = st.builds("{} {}".format, _fine(database, role), st.one_of(said, generated))
    if role == "msg_id":
        key = st.sampled_from(["PRIMARY KEY", "PRIMARY KEY", "UNIQUE", "NOT NULL"])
        return st.builds("{} {}".format, st.sampled_from(ANY[database]), key)
    return st.one_of(anything, anything, fine)


GIVEN = ("status", "error_try_times", "crash_times", "later_times")


def quoted(database: str, name: str) -> str:
    return f"`{name}`" if database == "mariadb" else f'"{name}"'


class Stuck(AssertionError):
    """What must not be; the text names the table."""


@dataclass
class Adoption:
    """One table, made, filled and adopted. engine: a plain one, of a database with `TYPES_MADE`;
    Apps share it on servers, where connecting takes longer than all else."""

    engine: sa.Engine
    database: str
    name: str
    figures: Counter[str] = field(default_factory=Counter)

    def run(self, table: Described) -> Counter[str]:
        """Raises Stuck."""
        statement = self._statement(table)
        if not self._try(statement):
            self.figures["refused by the database"] += 1
            return self.figures
        self.figures["tables"] += 1
        self.figures["with an act"] += table.act is not None
        self.figures["with a session"] += bool(table.session)
        try:
            self._adopt(table)
        except Stuck as stuck:
            self.engine.dispose()
            raise Stuck(f"{stuck}\n{statement}\n{table.act} {table.session}") from stuck
        except Exception as error:
            self.engine.dispose()
            said = f"{type(error).__name__}: {error!s:.700}"
            raise Stuck(
                f"another exception: {said}\n{statement}\n{table.act} {table.session}"
            ) from error
        finally:
            self._try(f"DROP TABLE {self._quoted(self.name)}")
        return self.figures

    def _adopt(self, table: Described) -> None:
        refused: list[str] = []
        for _ in range(4):
            try:
                app = self._app(table)
            except ConfigError as error:
                self._judge_refusal(str(error), table)
                self.figures["refused, mended by hand"] += 1
                return
            try:
                ran = self._work(app, table)
            except (SchemaError, ConfigError) as error:
                self._judge_refusal(str(error), table)
                if str(error) in refused:
                    raise Stuck(f"refused again after its mend: {error}") from error
                refused.append(str(error))
                if not self._mend(app, str(error)):
                    self.figures["refused, mended by hand"] += 1
                    return
                self.engine.dispose()  # what its connections have prepared is of the old types
                continue
            finally:
                if app.engine.pool is not self.engine.pool:
                    app.engine.dispose()
            self.figures["works, mended" if refused else ran] += 1
            return
        self.figures["refused, mended more than 3 times"] += 1

    def _work(self, app: App, table: Described) -> str:
        ran: list[int] = []

        def handle(msg: Message[Any]) -> None:
            ran.append(msg.msg_id)
            if len(ids) > 1 and msg.msg_id == ids[1] and ran.count(msg.msg_id) == 1:
                raise ValueError("once, and in \u4e2d\u6587 too")

        app.add_handler(None, handle, wait=wait_fixed(0.01))
        app.create_schema()
        ids: list[int] = []
        self._try(f"DELETE FROM {self._quoted(self.name)}")
        given = self._put(app, table)
        ids += given
        if not self._act(table):
            return "works, the act is refused"
        report = app.drain(threads=2, linger=0, retry_linger=5, time_limit=SECONDS)
        if not ids:
            return "works, takes no rows"
        statuses = self._statuses(app)
        if table.is_hindered:
            return self._hindered(statuses, ran, ids, report)
        expected = [s for i in ids for s in ([i, i] if i == ids[1] else [i])]
        if statuses != [2] * len(OBJECTS) or sorted(ran) != sorted(expected):
            raise Stuck(f"statuses {statuses}, ran {ran}, {report}")
        for parity in set(OBJECTS):
            own = [i for i in ran if OBJECTS[ids.index(i)] == parity]
            if own != sorted(own):
                raise Stuck(f"out of order: {ran}")
        if (report.done, report.left) != (len(OBJECTS), 0) or report.exit_code:
            raise Stuck(f"the report is not so: {report}")
        return "works"

    def _hindered(self, statuses: list[Any], ran: list[int], ids: list[int], report: Any) -> str:
        """What the database does to our statements is told, and bounded."""
        said = f"statuses {statuses}, ran {ran}, {report}"
        if any(ran.count(i) > MOST_STARTS for i in ids):
            raise Stuck(f"started again and again: {said}")
        if report.stopped:
            raise Stuck(f"did not end: {said}")
        if (statuses == [2] * len(OBJECTS)) != (report.exit_code == 0):
            raise Stuck(f"the exit code is not so: {said}")
        return "works, hindered" if report.exit_code else "works"

    # ------------------------------------------------------------ the table

    def _quoted(self, name: str) -> str:
        return quoted(self.database, name)

    def _statement(self, table: Described) -> str:
        columns = [f"{self._quoted(NAMES[r])} {kind}".strip() for r, kind in table.columns.items()]
        if table.key:
            columns.append(table.key.format(**self._names()))
        return f"CREATE TABLE {self._quoted(self.name)} ({', '.join(columns)}) {table.rest}".strip()

    def _names(self) -> dict[str, str]:
        named = {"id": "msg_id", "object": "object_id", "status": "status"}
        return {"t": self._quoted(self.name), "n": self.name} | {
            name: self._quoted(NAMES[role]) for name, role in named.items()
        }

    def _act(self, table: Described) -> bool:
        """Make what does something to our statements; false if the database refuses it."""
        if table.act is None:
            return True
        deed, status, which = table.act
        names = self._names()
        when = (
            f"NEW.{names['status']} = {status} AND NEW.{names['status']} <> OLD.{names['status']}"
        )
        when += "" if which is None else f" AND OLD.{names['id']} = {which}"
        names |= {"when": when, "value": str(status)}
        return all(self._try(one.format(**names)) for one in ACTS[self.database][deed])

    def _try(self, statement: str) -> bool:
        try:
            with self.engine.begin() as conn:
                conn.execute(sa.text(statement.replace(":", r"\:")))
        except sa.exc.SQLAlchemyError as error:
            self.said = str(getattr(error, "orig", error))
            return False
        return True

    def _app(self, table: Described) -> App:
        names: dict[str, Any] = {role: NAMES[role] for role in table.columns}
        names |= {role: None for role in OPTIONAL if role not in table.columns}
        spec = MessageTable(self.name, shard=None, instance_type=None, **names)
        # SQLite's must be ours: connections of a plain engine do not wait for a lock.
        source: Any = self.engine.url if self.database == "sqlite" else self.engine
        if table.session:
            source = self._engine(table.session)
        return App(source, table=spec, lease_seconds=60)

    def _engine(self, session: Mapping[str, str]) -> sa.Engine:
        options = dict(POOLS.get(session.get("pool", ""), {}))
        if "isolation" in session:
            options["isolation_level"] = session["isolation"]
        engine = plain_engine(self.engine.url, **options)
        if "session" in session:

            @sa.event.listens_for(engine, "connect")
            def connect(raw: Any, _: Any) -> None:
                cursor = raw.cursor()
                cursor.execute(session["session"])
                cursor.close()
                raw.commit()

        return engine

    def _put(self, app: App, table: Described) -> list[int]:
        """Five messages as a plain producer inserts them; [] if the table takes none."""
        with self.engine.connect() as conn:
            found = sa.inspect(conn).get_columns(self.name)
        by_role = {role: c for c in found for role, n in NAMES.items() if n == c["name"]}
        needed = [
            role
            for role, c in by_role.items()
            if role in ("msg_id", "object_id")
            or (role in GIVEN and _counts_up(c) and not c.get("computed"))
            or (role == "payload" and not c.get("computed"))
            or (not c["nullable"] and c.get("default") is None and not c.get("computed"))
        ]
        always = "GENERATED ALWAYS" in table.columns["msg_id"].upper()
        if always:
            needed.remove("msg_id")
        for pair in (("'a'", "'b'"), ("1", "2"), ("'1c0ffee0-0000-4000-8000-00000000000a'",
                     "'1c0ffee0-0000-4000-8000-00000000000b'"), ("'2024-01-01'", "'2024-01-02'"),
                     ("true", "false"), ("'{1}'", "'{2}'"), ("x'61'", "x'62'")):  # fmt: skip
            if self._put_rows(needed, dict(zip("ab", pair, strict=True))):
                break
        else:
            return []
        with self.engine.connect() as conn:
            key = self._quoted(NAMES["msg_id"])
            query = f"SELECT {key} FROM {self._quoted(self.name)} ORDER BY {key}"
            return [int(i) for i in conn.exec_driver_sql(query).scalars()]

    def _put_rows(self, needed: list[str], objects: Mapping[str, str]) -> bool:
        for n, one in enumerate(OBJECTS, start=1):
            row = {"msg_id": str(n), "object_id": objects[one], "status": "0"}
            row |= {"error_try_times": "0", "payload": "'1'", "later_times": "0"}
            row |= {"crash_times": "0"}
            wanted = {role: row.get(role, "NULL") for role in needed}
            rest = [role for role in needed if role not in row]
            if not any(
                self._insert(wanted | dict.fromkeys(rest, v)) for v in (VALUES if rest else ("0",))
            ):
                self._try(f"DELETE FROM {self._quoted(self.name)}")
                return False
        return True

    def _insert(self, row: Mapping[str, str]) -> bool:
        columns = ", ".join(self._quoted(NAMES[role]) for role in row)
        values = ", ".join(row.values())
        return self._try(f"INSERT INTO {self._quoted(self.name)} ({columns}) VALUES ({values})")

    def _statuses(self, app: App) -> list[Any]:
        with self.engine.connect() as conn:
            query = f"SELECT {self._quoted(NAMES['status'])} FROM {self._quoted(self.name)}"
            found = conn.exec_driver_sql(query).scalars().all()
        return [int(s) if str(s).lstrip("-").isdigit() else s for s in map(_plain, found)]

    # ------------------------------------------------------------ refusals

    def _judge_refusal(self, text: str, table: Described) -> None:
        names = [*(NAMES[role] for role in table.columns), *WHOLE_SAID]
        if not any(name in text for name in names):
            raise Stuck(f"the refusal names no column: {text}")
        if not MENDS.search(text):
            raise Stuck(f"the refusal names no mend: {text}")

    def _mend(self, app: App, refusal: str) -> bool:
        """Run what the refusal names, or else what doctor prints; false if that is nothing."""
        self._try(f"DELETE FROM {self._quoted(self.name)}")
        text, _, mends = refusal.partition(". To fix it: ")
        if mends and "MessageTable(" not in text and "create the table again" not in text:
            self._run(mends.split("; "))
            return True
        needed = [one for one in app.ops.doctor() if one.severity is Severity.NEEDED]
        needed = [one for one in needed if one.check in ("types", "columns", "checks", "storage")]
        self._run([statement for one in needed for statement in one.fix])
        return bool(needed) and all(one.fix for one in needed)

    def _run(self, mends: list[str]) -> None:
        for statement in mends:
            if not self._try(statement):
                raise Stuck(f"the mend fails: {statement}: {self.said}")


def _counts_up(column: Any) -> bool:
    """Whether a row without it gets no value, or one after the other."""
    default = column.get("default")
    return default in (None, "NULL") or "nextval" in str(default)


def _plain(value: Any) -> Any:
    try:
        return int(value)
    except (TypeError, ValueError):
        return value
