"""What was logged."""

from __future__ import annotations

import pytest


def assert_facts(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """This was logged, and every record about one message names it."""
    about_one = [r for r in caplog.records if r.getMessage().startswith("message ")]
    assert any(text in r.getMessage() for r in about_one)
    facts = ("instance", "msg_id", "object_id", "topic", "try")
    assert [r.getMessage() for r in about_one if not all(hasattr(r, f) for f in facts)] == []


CANARY = "Canary-4711"
