"""A dashboard that may act, and programs with tokens at its API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from msgworker import App
from msgworker.web import access
from msgworker.web.application import dashboard

TOKENS = {role: f"{role}-" + "x" * 40 for role in ("viewer", "operator", "admin")}


def dashboard_of(app: App, **options: Any) -> Any:
    """The ASGI application, which knows a token of each role."""
    entries = [
        access.entry(token, "a test", name=f"anna-{role}", role=access.Role.of(role))
        for role, token in TOKENS.items()
    ]
    options = {"actions": True, "redact": ["**.iban"]} | options
    return dashboard(app, auth=access.Tokens(tuple(entries)), **options)


def client_of(served: Any, role: str = "operator") -> TestClient:
    """A program with the token of a role."""
    headers = {"authorization": f"Bearer {TOKENS[role]}"} if role else {}
    return TestClient(
        served,
        base_url="http://127.0.0.1:8080/api/v1",
        headers=headers,
        raise_server_exceptions=False,
    )


@pytest.fixture
def served(app: App) -> Iterator[Any]:
    made = dashboard_of(app)
    yield made
    made.site.close()


@pytest.fixture
def client(served: Any) -> TestClient:
    """A program of an operator."""
    return client_of(served)
