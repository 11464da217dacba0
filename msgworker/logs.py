"""Our loggers: what others wrote stands in a record as one line, whatever prints the record.

Topics, object ids, errors and URLs may hold line ends and escapes, with which a message could fake
a line of the log or talk to a terminal. So they are escaped here, in the record itself, before any
handler or formatter of the user's sees it; no call that logs need think of it.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from msgworker.payload import shown

FACTS = ("object_id", "topic")
"""Attributes of records about a message that others wrote."""
MOST = 100_000
"""Characters of a line."""


def logger(name: str, *, of_user: bool = False) -> logging.Logger:
    """The logger of this name. of_user: what is logged is the user's own, only FACTS are not."""
    found = logging.getLogger(name)
    wanted = _FACTS_ONLY if of_user else _ALL
    if wanted not in found.filters:
        found.addFilter(wanted)
    return found


class _OneLine(logging.Filter):
    """Lets every record pass, escaped."""

    def __init__(self, *, facts_only: bool) -> None:
        super().__init__()
        self._facts_only = facts_only

    def filter(self, record: logging.LogRecord) -> bool:
        for name in FACTS:
            value = getattr(record, name, None)
            if isinstance(value, str) and not value.isprintable():
                setattr(record, name, shown(value, MOST))
        if not self._facts_only:
            text = record.getMessage()
            if not text.isprintable():
                record.msg, record.args = shown(text, MOST), None
            if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
                record.exc_text = traceback_text(record.exc_info[1])
        return True


_ALL, _FACTS_ONLY = _OneLine(facts_only=False), _OneLine(facts_only=True)


def traceback_text(error: BaseException) -> str:
    """A traceback as Python prints it, in which each exception's own text is one line."""
    told = traceback.TracebackException.from_exception(error)
    _on_one_line(told)
    lines = "".join(told.format()).rstrip("\n").split("\n")
    return "\n".join(shown(line, MOST) for line in lines)


def _on_one_line(told: Any) -> None:
    """Escape the texts of an exception and of those that led to it, which `format` prints."""
    for name in ("_str", "msg"):
        text = getattr(told, name, None)
        if isinstance(text, str):
            setattr(told, name, shown(text, MOST))
    if isinstance(told.__notes__, list):
        told.__notes__ = [shown(note, MOST) for note in told.__notes__ if isinstance(note, str)]
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _on_one_line(other)
