"""Statements of Oracle's SQL cut into tokens, calls and parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from proof.oracle.errors import ora

_SKIPPED = r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/"
_BIND = re.compile(rf"({_SKIPPED})|(?<![\w:]):(\"[^\"]+\"|[A-Za-z]\w*)", re.S)
_PIECES = re.compile(rf"{_SKIPPED}|\(|\)|,|\bAS\b|.", re.S | re.I)
_LITERAL = re.compile(r"""'(?:[^']|'')*'|"[^"]*\"""", re.S)


def bind_names(sql: str) -> list[str]:
    """The names of the parameters, in the order of the text."""
    return [_bare(found[2]) for found in _BIND.finditer(sql) if found[2]]


def with_binds(sql: str, mark: Callable[[str], str], other: Callable[[str], str] = str) -> str:
    """The text with each parameter as `mark` writes it, and what is between them as `other`
    does."""
    parts, end = [], 0
    for found in _BIND.finditer(sql):
        if found[2]:
            parts += [other(sql[end : found.start()]), mark(_bare(found[2]))]
            end = found.end()
    return "".join([*parts, other(sql[end:])])


def _bare(name: str) -> str:
    return name.strip('"').upper()


def outside_literals(sql: str, change: Callable[[str], str]) -> str:
    """The text with what stands between its literals and quoted names changed."""
    parts, end = [], 0
    for found in _LITERAL.finditer(sql):
        parts += [change(sql[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(sql[end:])])


def calls(sql: str, name: str, write: Callable[..., str | None]) -> str:
    """The text with each call of a function written anew, from the inside out; `write` gets its
    arguments, and gives None for one that stays."""
    opening = re.compile(rf"\b{name}\s*\(", re.I)
    at = len(sql)
    while (found := _last(opening, sql, at)) is not None:
        at = found.start()
        end = closing(sql, found.end())
        made = write(*split(sql[found.end() : end]))
        if made is not None:
            sql = sql[:at] + made + sql[end + 1 :]
    return sql


def _last(pattern: re.Pattern[str], text: str, before: int) -> re.Match[str] | None:
    return max(pattern.finditer(text, 0, before), key=lambda found: found.start(), default=None)


def closing(sql: str, begin: int) -> int:
    """Where the parenthesis ends that was opened just before `begin`."""
    depth = 1
    for piece in _PIECES.finditer(sql, begin):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if depth == 0:
            return piece.start()
    raise ValueError(f"a parenthesis that does not end: {sql}")


def split(text: str, at: str = ",") -> list[str]:
    """The parts of a text between commas (or the last AS) that are in no parentheses."""
    return list(_split(text, at))


def _split(text: str, at: str) -> Iterator[str]:
    depth = begin = 0
    for piece in _PIECES.finditer(text):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if depth == 0 and piece[0].upper() == at:
            yield text[begin : piece.start()].strip()
            begin = piece.end()
    yield text[begin:].strip()


_RETURNING = re.compile(r"\s+RETURNING\s+(.*?)\s+INTO\s+(.*)$", re.S | re.I)


def returning(sql: str) -> tuple[str, list[str], list[str]]:
    """A statement without its RETURNING; the columns, and the parameters that take them."""
    found = _RETURNING.search(sql)
    if found is None:
        return sql, [], []
    columns = [re.sub(r"^.*\.", "", column) for column in split(found[1])]
    return sql[: found.start()], columns, bind_names(found[2])


class Modify(NamedTuple):
    """ALTER TABLE ... MODIFY (...); None: it does not say that, and it stays."""

    table: str
    column: str
    kind: str | None
    default: str | None
    null: str | None


_MODIFY = re.compile(r"\s*ALTER\s+TABLE\s+(\S+)\s+MODIFY\s*\((.*)\)\s*$", re.I | re.S)
_MODIFIED = re.compile(
    r'("[^"]+"|\w+)(?:\s+(?!DEFAULT\b|NOT\b|NULL\b)(\w+(?:\([^)]*\))?))?'
    r"(?:\s+DEFAULT\s+(.+?))?(?:\s+((?:NOT\s+)?NULL))?",
    re.I | re.S,
)


def modify(sql: str) -> Modify | None:
    """What it changes, if it is one."""
    found = _MODIFY.match(sql)
    if found is None:
        return None
    said = _MODIFIED.fullmatch(found[2].strip())
    if said is None:
        raise ora(900, f"not understood: MODIFY {found[2]}")
    return Modify(found[1], *said.groups())
