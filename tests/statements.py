"""The statements of a running instance as each database gets them: `ddl/statements-*.sql`.

`make ddl` writes them anew (`python -m tests.statements NAME`), and tests/test_ddl.py compares
them, so that a change of SQL is seen in a diff. No server is needed: each function of store/ is
called with a connection that only notes what it is sent.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from textwrap import TextWrapper
from typing import Any

from sqlalchemy.exc import SAWarning

from msgworker import MessageTable
from msgworker.db.database import DATABASES, NAMES
from msgworker.errors import DuplicateMessage
from msgworker.store.done import NotTogether
from msgworker.table.build import tables_for
from tests.support.acts import Compiled, acts

SUBJECTS = (
    *("candidates", "ranked", "limits", "claim", "done", "settle", "items"),
    *("recover", "lease", "schedules", "jobs", "locks", "controls", "send"),
)
"""The modules of store/ whose statements are written, in the order of a message's life."""
LINE = TextWrapper(110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
HEAD = """\
-- What an instance sends to {name}, for a table with default names. Written by `make ddl`.
-- One entry for each function of msgworker/store, in the order of a message's life; what it sends
-- may depend on what it is given, and on what it has read.
"""


class Sent(Compiled):
    """A connection that notes all that it is sent, whichever way."""

    class dispatch:
        before_cursor_execute = (None,)  # as if it were watched: no cursor of the driver is used
        after_cursor_execute = ()

    def get_execution_options(self) -> dict[str, Any]:
        return {}

    def execute(self, statement: Any = None, params: Any = None) -> Any:
        if statement is not None:
            self.sent.append(_text(statement.compile(dialect=self.dialect)))
        return self

    def exec_driver_sql(self, sql: str, params: Any = None) -> Any:
        self.sent.append(sql)
        return self

    @property
    def cursor(self) -> Any:
        return self

    def fetchall(self) -> list[Any]:
        return list(self.rows.get("SELECT", ()))

    def close(self) -> None: ...

    inserted_primary_key = (1,)

    @property
    def out_parameters(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def begin_nested(self) -> Iterator[Sent]:
        yield self

    def one(self) -> tuple[Any, ...]:
        return next(iter(self.all()), (0, None))

    def scalar_one(self) -> datetime:
        return datetime(2026, 11, 22, tzinfo=UTC)


def _text(compiled: Any) -> str:
    """With the values that SQLAlchemy writes into it; lists as /* each of NAME */."""

    def written(found: re.Match[str]) -> str:
        bind = compiled.binds[found[1]]
        return f"/* each of {found[1]} */" if bind.expanding else repr(bind.value)

    return re.sub(r"__\[POSTCOMPILE_(\w+)\]", written, str(compiled))


def _first_line(thing: Any) -> str:
    """The first sentence of its docstring."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text)[0].rstrip(".")


def _once(sql: str) -> str:
    """Without the parts of a UNION ALL that differ from those beside them in a number alone."""
    parts = sql.split(" UNION ALL ")
    if len({re.sub(r"\d+", "", part) for part in parts[1:-1]}) != 1 or len(parts) < 4:
        return sql
    left_out = f"/* {len(parts) - 2} more such parts */"
    return " UNION ALL ".join((parts[0], left_out, parts[-1]))


def _written(sql: str) -> str:
    sql = _once(sql)
    return "\n".join(part for line in sql.strip().splitlines() for part in LINE.wrap(line)) + ";\n"


def statements(name: str) -> str:
    """The text of the file of a database."""
    warnings.simplefilter("ignore", SAWarning)  # of an INSERT ... SELECT without all of a key
    conn: Any = Sent(name)
    tables = tables_for(MessageTable(), DATABASES[name])
    found: dict[str, dict[Any, list[str]]] = {subject: {} for subject in SUBJECTS}
    for act, options in acts(tables, conn):
        subject = act.__module__.rpartition(".")[2]
        if not act.__module__.startswith("msgworker.store.") or subject not in SUBJECTS:
            continue
        conn.sent.clear()
        with suppress(NotTogether, DuplicateMessage):  # what was sent before is noted
            act(conn, tables, **options)
        of_act = found[subject].setdefault(act, [])
        of_act += [sql for sql in map(_written, conn.sent) if sql not in of_act]
    out = [HEAD.format(name=name)]
    for subject, of_subject in found.items():
        module = sys.modules[f"msgworker.store.{subject}"]
        if any(of_subject.values()):
            out.append(f"\n-- {'=' * 20} {subject}: {_first_line(module)}\n")
        for act, sent in of_subject.items():
            if sent:
                out += [
                    "\n",
                    *(f"-- {x}\n" for x in LINE.wrap(f"{act.__name__}: {_first_line(act)}")),
                ]
                out += sent
    return "".join(out)


if __name__ == "__main__":
    if sys.argv[1:] in [[name] for name in NAMES]:
        sys.stdout.write(statements(sys.argv[1]))
    else:
        sys.exit(f"usage: python -m tests.statements {'|'.join(NAMES)}")
