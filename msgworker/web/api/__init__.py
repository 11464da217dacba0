"""The JSON API, `/api/v1`: all of it goes through `app.ops`.

calling    from a request to a call, and from a value to an answer; problems, keys of writes
messages, operations   the resources
document   the OpenAPI document, from the endpoints of the resources
"""

from __future__ import annotations

import functools
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from msgworker.web.api import messages, operations  # noqa: F401 - they add ENDPOINTS
from msgworker.web.api.calling import ENDPOINTS, answer_of

__all__ = ["ENDPOINTS", "routes"]


async def openapi(request: Request) -> Response:
    """The OpenAPI document, with the place where this dashboard is served."""
    root = str(request.state.root)
    return answer_of(_document() | {"servers": [{"url": f"{root}/api/v1"}]})


@functools.cache
def _document() -> dict[str, Any]:
    """The same for all requests: pydantic takes a moment for it."""
    from msgworker.web.api.document import document

    return document(ENDPOINTS)


routes: list[BaseRoute] = [
    Route("/openapi.json", openapi, methods=["GET"], name="openapi"),
    *(one.route() for one in ENDPOINTS),
]
