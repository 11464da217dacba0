"""The plan of the query that looks for messages to claim."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.exc import DBAPIError

from msgworker import dialects
from msgworker.dialects import is_overtime
from msgworker.store.claiming import candidates
from msgworker.store.looking import window
from msgworker.store.looking.doctor.finding import Finding, advised, fine
from msgworker.store.looking.doctor.patient import Patient
from msgworker.table import Tables

LAST_KEY = "\uffff"
WORTH_AN_INDEX = 10_000
"""In a table with fewer rows a planner may rightly read all of it."""


def plan(p: Patient) -> list[Finding]:
    """Which index the claim's candidates are read by."""
    if p.live is None or any(c.name not in p.columns for c in p.live.message.c):
        return []
    try:
        query, params, index = _candidates(p, p.live)
        lines = dialects.plan_of(p.conn, p.dialect.name, query, params)
    except DBAPIError as error:
        if is_overtime(error):
            raise
        return []  # something that the claim needs is missing, and was found already
    if lines is None:
        return []
    text = "\n".join(lines)
    names = dialects.index_parts(p.conn, p.live.message, index)
    if any(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
        return [fine("plan", f"messages are claimed by index {index}", detail=text)]
    rows = dialects.row_estimate(p.conn, p.live.message) or 0
    if rows < WORTH_AN_INDEX:
        return [fine("plan", "the table is so small that claims read all of it", detail=text)]
    what = f"claims do not use index {index}: their cost grows with the table"
    mend = dialects.ANALYZE.get(p.dialect.name, "").format(p.table_name(p.live.message))
    return [advised("plan", what, *([mend] if mend else []), detail=text)]


def _candidates(p: Patient, t: Tables) -> tuple[Any, dict[str, Any], str]:
    """The statement as the claim runs it; it is built by running it once, behind the last row."""
    if t.dialect.oldest_index:
        candidates.oldest(p.conn, t, mark=window.MOST, limit=1)
        index = t.spec.index_name("oldest")
        return t.built("oldest", _never), {"mark": window.LEAST, "rows": 100}, index
    candidates.heads(p.conn, t, after=LAST_KEY, limit=1)
    index = t.spec.index_name("object")
    return t.built(("page", False, None), _never), {"after": "", "rows": 100}, index


def _never() -> Any:
    raise AssertionError("the claim has not built its statement")
