"""Failures: messages that failed for the same reason, as groups; also as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import unicodedata
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.queries.failures import Failures
from msgworker.store.bounded import Found
from msgworker.web import sections
from msgworker.web.forms import SPANS, Selection
from msgworker.web.site import Site, site_of

NAV = ("Failures", "failures")
ROWS = 100
CSV_ROWS = 500
COLUMNS = (
    "fingerprint",
    "error",
    "dead",
    "failing",
    "topics",
    "waiting_objects",
    "first_seen",
    "last_seen",
    "sample_id",
)
FORMULA = "=+-@"
"""Spreadsheets read a cell that begins so as a formula, full-width signs and spaces before it
too."""


async def _groups(site: Site, request: Request, rows: int) -> tuple[Selection, Found[Failures]]:
    given = {k: v for k, v in request.query_params.items() if k in ("topic", "since")}
    chosen = Selection.of(given)
    since, topic = chosen.instant(), chosen.topic or None
    return chosen, await site.ask(site.ops.failures, topic=topic, since=since, limit=rows)


async def failures(request: Request) -> Response:
    site = site_of(request)

    async def values() -> dict[str, Any]:
        (chosen, found), overview = await asyncio.gather(
            _groups(site, request, ROWS), site.overview()
        )
        return {
            "chosen": chosen,
            "rows": found,
            "topics": [one.topic for one in overview.topics][:CSV_ROWS],
            "spans": list(SPANS),
            "limits": {k: v for k, v in chosen.fixed.query.items() if k == "topic"},
        }

    return await sections.page(site, request, "failures.html", values)


async def as_csv(request: Request) -> Response:
    site = site_of(request)
    _, found = await _groups(site, request, CSV_ROWS)
    headers = {"content-disposition": 'attachment; filename="failures.csv"'}
    text = csv_of(found, site.without)
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def csv_of(groups: Iterable[Failures], scrub: Any = str) -> str:
    """The groups as CSV (RFC 4180); no cell is read as a formula."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for one in groups:
        writer.writerow([cell(scrub(_text(getattr(one, name)))) for name in COLUMNS])
    return out.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def cell(text: str) -> str:
    """A text that a spreadsheet shows as it is; numbers stay numbers."""
    bare = text.removeprefix("-")
    if bare.isascii() and bare.isdecimal():
        return text
    first = unicodedata.normalize("NFKC", text).lstrip()[:1]
    odd = text[:1].isspace() or not text[:1].isprintable()
    return f"'{text}" if text and (odd or not first or first in FORMULA) else text


routes = [
    Route("/failures", failures, name="failures"),
    Route("/failures.csv", as_csv, name="failures_csv"),
]
