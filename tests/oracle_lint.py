"""What Oracle (up to 19c) refuses although other databases and parsers take it: patterns.

The tests have no Oracle server: every statement is compiled and compared with this list.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.oracle.base import RESERVED_WORDS
from sqlalchemy.sql import elements, functions, visitors

from msgworker.db.types import AnyText, KeyText, LongText

MAX_IDENTIFIER = 30
MAX_IN_LIST = 1000
_FLAGS = re.IGNORECASE | re.DOTALL

_RESERVED = (
    *RESERVED_WORDS,  # the dialect quotes these
    *("access", "add", "audit", "column", "file", "immediate", "increment", "initial"),
    *("maxextents", "mlslabel", "modify", "noaudit", "offline", "online", "privileges", "row"),
    *("rowid", "rownum", "rows", "session", "successful", "sysdate", "validate", "whenever"),
)
"""Of the manual of its SQL, the words that are marked as reserved."""

RULES: dict[str, str] = {
    r"\bLIMIT\s+[:\d?]": "ORA-00933: LIMIT",
    r"FETCH\s+(FIRST|NEXT)\b.*\bFOR\s+UPDATE": "ORA-02014: FETCH FIRST and FOR UPDATE",
    r"\bROWNUM\b(?:(?!\)).)*\bORDER\s+BY\b": "ROWNUM and ORDER BY at the same level",
    r"\)\s*\w*\s+WHERE\s+ROWNUM\b(?:(?!\)).)*FOR\s+UPDATE": "ORA-02014: FOR UPDATE of a view",
    r"\b(FROM|JOIN)\s+[\w.]+\s+AS\s+\w+": "ORA-00933: AS before the alias of a table",
    r"\)\s+AS\s+\w+\s*(WHERE|$)": "ORA-00933: AS before the alias of a subquery",
    r"\b(TRUE|FALSE)\b": "a boolean literal (before 23ai)",
    r"\bON\s+CONFLICT\b|\bILIKE\b|\bON\s+DUPLICATE\b|\bINSERT\s+OR\b": "not Oracle's",
    r"\bUPDATE\s+(OR\s+)?IGNORE\b": "not Oracle's",
    r"\bINDEXED\s+BY\b|\bFORCE\s+INDEX\b": "not Oracle's",
    r"\bWITH\s+RECURSIVE\b": "ORA-00905: RECURSIVE",
    r"^\s*SELECT\b(?!.*\bFROM\b)": "ORA-00923: SELECT without FROM",
    r"SELECT\s+EXISTS": "EXISTS as a column (before 23ai)",
    r"(=|<>|!=)\s*''": "compared with an empty text, which is NULL",
    r"VALUES\s*\([^()]*\)\s*,\s*\(": "VALUES of many rows (before 23ai)",
    r"\bRETURNING\b(?!.*\bINTO\b)": "RETURNING without INTO",
    rf":({'|'.join(_RESERVED)})\b": "ORA-01745: a reserved word as the name of a parameter",
    r":_|:\d+[a-z]": "ORA-01036: the name of a parameter",
    r";\s*$": "ORA-00933: a semicolon at the end",
    r"\bNOW\(\)|\bINTERVAL\s+\d": "not Oracle's arithmetic of dates",
    r"UPDATE\s+\w+\s+SET\b.*\bFROM\b\s+\w+\s+WHERE(?!.*SELECT)": "UPDATE ... FROM (before 23ai)",
    r"\b(INSERT|UPDATE|DELETE)\b.*\bWITH\s+\w+\s+AS\b": "a WITH inside a statement that writes",
    r"^\s*WITH\b.*\b(UPDATE|DELETE|INSERT)\s+\w": "a WITH before a statement that writes",
    r"\bTIMESTAMP\b\s*\+\s*\d": "a number added to a TIMESTAMP makes it a DATE",
    r"\bCURRENT_TIMESTAMP\b|\bLOCALTIMESTAMP\b": "the clock in the time zone of the session",
    r"\b(TEXT|LONGTEXT|BOOLEAN|BIGINT|SERIAL|DATETIME)\b": "a type that Oracle has not",
}
_QUOTED = re.compile(r"""'(?:[^']|'')*'|("[^"]*")""", re.S)
_RULES = [(re.compile(pattern, _FLAGS), what) for pattern, what in RULES.items()]


_BLOCK = re.compile(r"\s*(DECLARE|BEGIN)\b", re.I)
_PL_SQL = re.compile(
    r"\s*DECLARE CURSOR \w+ IS\s"
    r"|\s*(BEGIN )?(OPEN \w+|CLOSE \w+|:\w+ := SQL%ROWCOUNT|END)\s*$",
    re.I,
)


def parts_of_block(sql: str) -> list[tuple[str, str]]:
    """Of an anonymous block what lies between its semicolons, each as the words of PL/SQL before
    the statement and the statement, one of them empty; [] of what is no block."""
    if not _BLOCK.match(sql) or not sql.rstrip().endswith(";"):
        return []
    pieces = re.findall(r"""((?:'(?:[^']|'')*'|"[^"]*"|[^;'"])+);""", sql)
    found = [(piece, _PL_SQL.match(piece)) for piece in pieces]
    return [(p[: m.end()], p[m.end() :]) if m else ("", p) for p, m in found]


def lint(sql: str) -> list[str]:
    """What Oracle would not take in one statement; [] if nothing is known against it."""
    if parts := parts_of_block(sql):
        return [wrong for _, statement in parts if statement for wrong in lint(statement)]
    text = _QUOTED.sub(lambda found: found[0] if found[0] == "''" else found[1] or "'x'", sql)
    hints = re.findall(r"/\*\+.*?\*/", text, re.DOTALL)
    text = re.sub(r"/\*\+.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"--[^\n]*", "", text)
    found = [what for pattern, what in _RULES if pattern.search(text)]
    if any(re.search(r"\(\s*\w+\.", hint) for hint in hints):
        found.append("a hint that names the schema of a table is passed over")
    lists = re.findall(r"\bIN\s*\(([^()]*)\)", text, re.IGNORECASE)
    if any(part.count(",") >= MAX_IN_LIST for part in lists):
        found.append(f"ORA-01795: more than {MAX_IN_LIST} values in a list")
    names = re.findall(r"[A-Za-z_$#][\w$#]*", text)
    found += [
        f"longer than {MAX_IDENTIFIER}: {name}" for name in names if len(name) > MAX_IDENTIFIER
    ]
    return found


# --- Texts of two character sets: those of the columns in a table of NVARCHAR2, and our own.


def mixed(statement: sa.ClauseElement, national: sa.Table) -> list[str]:
    """The COALESCEs and CASEs of a statement that Oracle refuses (ORA-12704) where the texts of
    that table are NVARCHAR2: those with a text of another kind beside one of its columns."""
    found = []
    for part in visitors.iterate(statement):
        if isinstance(part, elements.Case | functions.coalesce):
            kinds = {_kind(one, national) for one in _results(part)} - {None}
            if len(kinds) > 1:
                found.append(str(part))
        elif isinstance(part, sa.CompoundSelect):
            for column in zip(*(one.selected_columns for one in part.selects), strict=True):
                if len({_kind(one, national) for one in column} - {None}) > 1:
                    found.append(f"UNION of {column[0]}")
    return found


def _results(part: Any) -> list[Any]:
    if isinstance(part, elements.Case):
        return [*(result for _, result in part.whens), part.else_]
    return list(part.clauses)


def _kind(part: Any, national: sa.Table) -> str | None:
    """N or C, the character set of a text; None of what is no text, or NULL."""
    if isinstance(part, elements.Label | elements.Grouping):
        return _kind(part.element, national)
    if isinstance(part, elements.ColumnClause) and part.table is not None:
        source = getattr(part.table, "element", part.table)
        if isinstance(source, sa.SelectBase):
            return _kind(source.selected_columns.get(part.key), national)
        if source is national:
            return "N" if isinstance(part.type, sa.String | KeyText | LongText) else None
    if isinstance(part, elements.Case | functions.FunctionElement):
        kinds = [_kind(one, national) for one in _results(part)]
        is_text = isinstance(part.type, sa.String | KeyText | AnyText)
        return next((kind for kind in kinds if kind), None) if is_text else None
    is_text = isinstance(getattr(part, "type", None), sa.String | KeyText | AnyText)
    return "C" if is_text and not isinstance(part, elements.Null) else None
