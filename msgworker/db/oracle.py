"""Oracle: fewer round trips and parses, by hints to the driver and by statements that are sent as
one block."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import oracle
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from msgworker.db.catalogue import asked
from msgworker.db.database import NOTHING, At, Database, IdSource, Trouble, Was
from msgworker.db.drivers import CONNECT_SECONDS
from msgworker.db.errors import is_lost_by_its_text

_INSTANT_FORMAT = "'SYYYY-MM-DD HH24:MI:SS.FF6'"
_SINCE_1970 = "(SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')"
_UNTIL = "({0} - TIMESTAMP '1970-01-01 00:00:00')"
_HERE = "sys_context('userenv', 'current_schema')"
"""Where names lead, which a session may set (ALTER SESSION SET CURRENT_SCHEMA)."""


def _sum_of(interval: str, **sizes: int) -> str:
    """The parts of an interval, each times its size."""
    return " + ".join(f"EXTRACT({part} FROM {interval}) * {size}" for part, size in sizes.items())


def _seconds_of(interval: str) -> str:
    return _sum_of(interval, DAY=86_400, HOUR=3_600, MINUTE=60, SECOND=1)


class Oracle(Database):
    """Oracle 12.1 and later, by python-oracledb or cx_Oracle."""

    name = "oracle"
    case_index = "function"
    guard_case = "function"
    oldest_index = True
    pads_chars = True
    null_is_default = True  # DEFAULT ON NULL
    refuses_others = False
    empty_is_null = True
    blocks = True
    defers = True
    max_ids = 500  # an IN list over 1,000 elements is ORA-01795
    index_hint = "FIRST_ROWS(100) INDEX(%(name)s {})"
    or_text = "NVL({0}, {1})"  # COALESCE refuses an NVARCHAR2 beside our texts: ORA-12704

    # --- Errors.

    codes = {  # noqa: RUF012
        "no connection": (18, 20, 2391, 12516, 12519, 12520),
        "denied": (1031, 41900),  # a table without any right is reported as missing
        "overtime": ("DPY-4024", "DPI-1067", 3156, 1013),
        "statement limit": ("DPY-4024", "DPI-1067", 3156, 2049, 30006),
        "session limit": (2396, 2399),
    }

    def code(self, error: BaseException) -> int | str | None:
        """The first in its text: the driver names a code of the server behind its own."""
        text = str(error)
        found = re.match(r"ORA-0*(\d+)", text)
        return text.partition(":")[0] if found is None else int(found[1])

    def says(self, what: str, error: BaseException) -> bool:
        if what == "no connection":
            return _code(str(error)) in self.codes[what]
        return super().says(what, error)

    def trouble(self, error: BaseException) -> Trouble:
        text = str(error)
        driver = re.match(r"(ORA|DPY|DPI)-0*(\d+)", text)
        if driver is None:
            return Trouble.LOST if is_lost_by_its_text(error) else Trouble.OTHER
        inner = _code(text)
        if inner in _TROUBLES:
            return _TROUBLES[inner]
        return _DRIVER_TROUBLES.get(f"{driver[1]}-{driver[2]}", Trouble.OTHER)

    def violated_index(self, error: BaseException) -> str | None:
        found = re.search(r"\(([^)]*)", str(error))
        return "" if found is None else found[1]

    # --- Deadlines.

    @contextmanager
    def deadline(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        raw: Any = conn.connection.driver_connection
        before = raw.call_timeout
        raw.call_timeout = max(1, round(seconds * 1000))
        try:
            yield
        finally:
            if not (conn.closed or conn.invalidated):
                raw.call_timeout = before

    before_transaction = deadline

    # --- Time.

    session_offset = (
        "SELECT EXTRACT(TIMEZONE_HOUR FROM SYSTIMESTAMP) * 3600"
        " + EXTRACT(TIMEZONE_MINUTE FROM SYSTIMESTAMP) * 60 FROM DUAL"
    )

    # SYSTIMESTAMP is the server's clock; CURRENT_TIMESTAMP would be in the session's time zone.
    now = "CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"
    now_ms = (
        f"({_sum_of(_SINCE_1970, DAY=86_400_000, HOUR=3_600_000, MINUTE=60_000)}"
        f" + FLOOR(EXTRACT(SECOND FROM {_SINCE_1970}) * 1000))"
    )
    now_plus = f"({now} + NUMTODSINTERVAL({{0}}, 'SECOND'))"
    # Of an interval: a difference of DATEs would have whole seconds only.
    seconds_passed = f"({_seconds_of('(' + now + ' - CAST({0} AS TIMESTAMP))')})"
    step_of = f"FLOOR(({_seconds_of(_UNTIL)}) / {{1}})"
    text_of = f"TO_CHAR(CAST({{0}} AS TIMESTAMP), {_INSTANT_FORMAT})"
    of_text = f"TO_TIMESTAMP({{0}}, {_INSTANT_FORMAT})"
    real = "{0}"
    moved = "({0} + NUMTODSINTERVAL({1}, 'SECOND'))"
    with_zone = "FROM_TZ({0}, 'UTC')"
    unzoned = "SYS_EXTRACT_UTC({0})"

    # --- Columns.

    def instant_type(self, *, zoned: bool) -> TypeEngine[Any]:
        return oracle.TIMESTAMP()  # DateTime would be DATE: whole seconds

    def instant_form(self, kind: TypeEngine[Any] | None, zone: str) -> tuple[str, str]:
        has_zone = isinstance(kind, sa.DateTime) and (
            kind.timezone or getattr(kind, "local_timezone", False)
        )
        return ("UTC", "zoned") if has_zone else (zone, "")

    def created_default(self, zone: str, offset: int | None) -> str:
        if offset is None:
            return f"(CAST(SYSTIMESTAMP AT TIME ZONE '{zone}' AS TIMESTAMP))"
        utc = "SYS_EXTRACT_UTC(SYSTIMESTAMP)"
        return f"({utc} + NUMTODSINTERVAL({offset}, 'SECOND'))" if offset else utc

    def whole_id_type(self) -> TypeEngine[Any]:
        number: Any = oracle.NUMBER  # else its driver would fail on a fraction
        made: TypeEngine[Any] = number(asdecimal=True)
        return made

    # --- DDL.

    driver = "oracle+oracledb"
    unpartitioned = (
        "indexes are over all partitions there, and stay as they are: add PARTITION BY HASH to the "
        "CREATE TABLE of the script (docs/project/oracle.md)"
    )
    owner_rights = "CREATE TABLE and a quota, and to own the tables"

    def offline_dialect(self) -> sa.Dialect:
        made = super().offline_dialect()
        made.server_version_info = (19,)
        return made

    def identity(self, *, always: bool = False) -> tuple[Any, ...]:
        # ORDER: else each node of a RAC uses its own range of ids, so that a message inserted
        # later on another node may get a lower one. On a single node it costs nothing.
        return (sa.Identity(always=False, cache=100, **_ORDER),)

    def add_column(self, column: str) -> str:
        return f"ADD ({column})"

    def alter_type(self, at: At, to: sa.Column[Any], was: Was = NOTHING) -> list[str]:
        kind, default = to.type.compile(dialect=at.sql), was.default_for(to)
        rest = (f" DEFAULT {default}" if default else "") + (
            " NULL" if to.nullable else " NOT NULL"
        )
        return [_modified(at, f"{kind}{rest}")]

    def drop_not_null(self, at: At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        return [_modified(at, "DEFAULT NULL NULL")]

    def set_not_null(self, at: At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        return [] if isinstance(kind, sa.types.NullType) else [_modified(at, "NOT NULL")]

    def set_default(self, at: At, default: str) -> tuple[str, ...]:
        return (_modified(at, f"DEFAULT {default}"),)

    # --- The catalogue.

    other_schemas = (
        "SELECT owner FROM all_objects WHERE object_type IN ('TABLE', 'VIEW')"
        " AND object_name IN (:name, upper(:name))"
        f" AND owner <> upper(coalesce(:own, {_HERE}))"
    )
    row_estimate = (
        "SELECT num_rows FROM all_tables"
        f" WHERE owner = coalesce(upper(:schema), {_HERE}) AND table_name = :name"
    )
    table_size = (
        "SELECT (SELECT coalesce(sum(bytes), 0) FROM user_segments"
        " WHERE segment_name = user_tables.table_name OR segment_name IN"
        " (SELECT user_lobs.segment_name FROM user_lobs"
        " WHERE user_lobs.table_name = user_tables.table_name)),"
        " (SELECT coalesce(sum(bytes), 0) FROM user_segments WHERE segment_name IN"
        " (SELECT user_indexes.index_name FROM user_indexes"
        " WHERE user_indexes.table_name = user_tables.table_name))"
        f" FROM user_tables WHERE table_name = :name AND coalesce(upper(:schema), {_HERE}) = user"
    )

    def catalogue_name(self, name: str) -> str:
        return name.upper() if name.islower() else name

    def id_source(self, conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
        found = asked(conn, _IDENTITY_OF, table, column=column).first()
        if found is None:
            return None
        name, cycles, ahead, most, step = tuple(found)
        return IdSource(f'"{name}"', cycles == "Y", int(ahead), True, int(most), int(step))

    def advance_ids(self, at: At, source: IdSource, highest: int) -> list[str]:
        return [_modified(at, "GENERATED BY DEFAULT AS IDENTITY (START WITH LIMIT VALUE)")]

    def end_ids(self, at: At, source: IdSource) -> str:
        # The sequence of an identity cannot be altered itself.
        return _modified(at, "GENERATED BY DEFAULT AS IDENTITY (NOCYCLE)")

    # --- A live table.

    from_nothing = " FROM dual"
    rule_queries = (
        "SELECT 'check', constraint_name, search_condition_vc FROM all_constraints"
        f" WHERE owner = coalesce(upper(:schema), {_HERE}) AND table_name = :name"
        " AND constraint_type = 'C' AND status = 'ENABLED'",
        "SELECT 'trigger', trigger_name, trigger_type || ' ' || triggering_event"
        f" FROM all_triggers WHERE table_owner = coalesce(upper(:schema), {_HERE})"
        " AND table_name = :name AND status = 'ENABLED'",
    )

    def is_not_null(self, check: str) -> bool:
        # It goes with a MODIFY, not as a constraint.
        return re.fullmatch(r'"[^"]+" IS NOT NULL', check) is not None

    # --- The server.

    current_user = "SELECT user FROM dual"

    # --- The engine.

    family = "oracle"
    extra = "oracle"
    port = 1521
    driver_options = {  # noqa: RUF012
        "oracledb": {
            "tcp_connect_timeout": CONNECT_SECONDS,
            "expire_time": 1,  # minutes
            "stmtcachesize": 100,  # statements that the driver keeps open; by default 20
        }
    }
    checked_drivers = ("oracledb",)
    autocommit_flag = True

    def missing_driver(self, url: URL) -> tuple[str, str]:
        if url.drivername == "oracle+cx_oracle":
            return url.drivername, "cx-oracle"
        return super().missing_driver(url)

    def prepare(self, engine: sa.Engine, *, given: bool) -> None:
        event.listen(engine, "before_execute", _pad_lists, retval=True)
        event.listen(engine, "before_cursor_execute", _fetch_at_once)

    def place(self, conn: sa.Connection, table: str) -> list[str]:
        query = (
            "SELECT SYS_CONTEXT('USERENV', 'DB_UNIQUE_NAME'), "
            "SYS_CONTEXT('USERENV', 'CON_NAME'), SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA') FROM dual"
        )
        return [str(value) for value in conn.execute(sa.text(query)).one()]

    # --- Blocks of PL/SQL.

    def can_block(self, conn: sa.Connection) -> bool:
        # Not where schemas are translated, which would not be in its names; and not once the
        # database has refused one.
        translated = conn.get_execution_options().get("schema_translate_map")
        return not translated and conn.dialect not in _refused

    def block_of(
        self, conn: sa.Connection, lock: sa.Select[Any], changes: Mapping[str, sa.Update]
    ) -> sa.TextClause:
        # An anonymous block, in which each statement begins when the one before it has ended. Rows
        # are locked when their cursor is opened, not as they are fetched. The number of rows of
        # each UPDATE comes back as the parameter of its name. Of parameters without a name only one
        # statement may have any.
        binds: dict[str, sa.BindParameter[Any]] = {}

        def compiled(statement: Any) -> str:
            made = statement.compile(dialect=conn.dialect)
            for bind, name in made.bind_names.items():
                value = {} if bind.required else {"value": bind.value}
                binds[name] = sa.bindparam(name, type_=bind.type, expanding=bind.expanding, **value)
            names = "|".join(made.bind_names.values())
            # Another colon is one of a literal.
            return _LIST.sub(r":\1", re.sub(rf":(?!(?:{names})\b)", r"\:", str(made)))

        compiled_changes = "; ".join(
            f"{compiled(change)}; :{name} := SQL%ROWCOUNT" for name, change in changes.items()
        )
        counts = [sa.outparam(name, sa.Integer()) for name in changes]
        return sa.text(
            f"DECLARE CURSOR mw_rows IS {compiled(lock)}; "
            f"BEGIN OPEN mw_rows; CLOSE mw_rows; {compiled_changes}; END;"
        ).bindparams(*binds.values(), *counts)

    def send_block(
        self, conn: sa.Connection, block: sa.TextClause, params: dict[str, Any]
    ) -> Sequence[int]:
        found: Any = conn.execute(block, params)
        return list(found.out_parameters.values())

    def refuses_block(self, conn: sa.Connection, error: DBAPIError) -> bool:
        # For example where PL/SQL reads the name of a column as a keyword.
        refused = bool(re.match(r"ORA-0*6550\b", str(error.orig)))
        if refused:
            _refused.add(conn.dialect)
        return refused


def _modified(at: At, rest: str) -> str:
    return at.alter(f"MODIFY ({at.quoted} {rest})")


_IDENTITY_OF = (
    "SELECT i.sequence_name, s.cycle_flag, s.last_number, s.max_value, s.increment_by"
    " FROM all_tab_identity_cols i JOIN all_sequences s ON s.sequence_owner = i.owner"
    f" AND s.sequence_name = i.sequence_name WHERE i.owner = coalesce(upper(:schema), {_HERE})"
    " AND i.table_name = :name AND lower(i.column_name) = lower(:column)"
)
# SQLAlchemy 2.1 uses another name.
_ORDER: dict[str, Any] = {"oracle_order" if hasattr(sa.Identity, "argument_for") else "order": True}


def _code(text: str) -> int | None:
    """The server's own code, below one that only says where it came up: in a statement of the
    server's, or in one of its parallel processes."""
    codes = [int(code) for code in re.findall(r"ORA-0*(\d+)", text)]
    return next((code for code in codes if code not in (604, 12801)), codes[0] if codes else None)


_TROUBLES = {
    1: Trouble.RACE,
    **dict.fromkeys((54, 60, 1555, 4068, 8006, 8177, 12860, 30006, 1013), Trouble.AGAIN),
    **dict.fromkeys(
        (
            *(51, 1591, 2049, 4020, 4021),  # a lock is held for too long
            *(1466, 4061, 8103),  # what the statement uses was altered
        ),
        Trouble.AGAIN,
    ),
    **dict.fromkeys(
        (
            *(18, 20, 28, 600, 603, 1012, 1033, 1034, 1041, 1089, 1090, 1092, 2391, 2396, 2399),
            *(1014, 1035, 1109, 1219, 16456, 24324),  # it starts, stops or becomes a standby
            *(2390, 2392, 2394, 2397),  # limits of the profile, by which the session ends
            *(3113, 3114, 3135, 3136, 3137, 12152, 12153, 12170, 12500, 12505, 12514, 12516, 12518),
            *(*range(12519, 12522), 12523, *range(12525, 12529), 12535, 12537, 12540, 12541, 12543),
            *(12545, 12547, 12549, 12560, 12570, 12571, 12592, 12609, 12637, 24459, 56600),
            *(*range(25401, 25410), 41412),  # TAF, Application Continuity
            *(257, 30032),  # no space for the archived log, or none after a wait for it
            *(*range(1628, 1633), *range(1650, 1657), 1658, 1659),  # no space for a row, an index
            *(1536, 1688, 1691, 1692, 1693, 30036),  # nor in the quota, for a LOB, or to undo
            *(52, 53, 55, 4030, 4031, 4036),  # no lock, or memory, left
            *(376, 1114, 1115, 1116, 27061, 27063, 27072),  # a file cannot be read or written
        ),
        Trouble.LOST,
    ),
    **dict.fromkeys(
        (
            *(904, 942, 2289),
            *(1017, 1031, 1045, 1950, 28000, 28001, 41900),
            *(372, 1456, 12081, 16000),  # read-only
        ),
        Trouble.REFUSED,
    ),
}
_DRIVER_TROUBLES = {
    **dict.fromkeys(("DPY-1001", "DPY-4011", "DPY-4033", "DPI-1010", "DPI-1080"), Trouble.LOST),
    **dict.fromkeys(("DPY-6000", "DPY-6001", "DPY-6003", "DPY-6005"), Trouble.LOST),
    **dict.fromkeys(("DPY-4024", "DPI-1067"), Trouble.AGAIN),
    "DPY-3001": Trouble.REFUSED,  # what only the thick mode has
    "DPY-3010": Trouble.REFUSED,  # a server that is too old for the thin mode
    "DPY-4027": Trouble.REFUSED,  # no tnsnames.ora
    "DPI-1047": Trouble.REFUSED,  # no client libraries
}


ROWS_AT_ONCE = 501
"""One more than our lists of ids have: so the driver knows the last row as the last."""
_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)


def _fetch_at_once(
    conn: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> None:
    # By default the first answer brings 2 rows, and each further round trip 100 of them.
    cursor.prefetchrows = cursor.arraysize = ROWS_AT_ONCE


def _pad_lists(
    conn: sa.Connection, element: Any, multiparams: Any, params: Any, options: Any
) -> tuple[Any, Any, Any]:
    # A list is as many parameters as it has elements, so each length would be a statement of its
    # own, to be parsed by the server and kept by the driver: it is filled up with its last element.
    return element, [_padded(one) for one in multiparams], _padded(params)


def _padded(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    lists = {
        name: [*value, *value[-1:] * (_filled_length(len(value)) - len(value))]
        for name, value in given.items()
        if name.startswith("mw_") and isinstance(value, list) and len(value) > 1
    }
    return {**given, **lists} if lists else given


def _filled_length(length: int) -> int:
    return next((one for one in _LENGTHS if one >= length), length)


_LIST = re.compile(r"\(__\[POSTCOMPILE_(\w+)\]\)")


_refused: weakref.WeakSet[sa.Dialect] = weakref.WeakSet()
"""Of the engines whose database has refused a block."""
