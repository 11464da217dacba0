"""The JSON API, `/api/v1`."""

from __future__ import annotations

from starlette.routing import BaseRoute

routes: list[BaseRoute] = []
