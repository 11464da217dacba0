"""Writes in threads of their own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from msgworker.web.threads import Jobs, TooMany, Watch


def test_a_write_whose_thread_cannot_start_does_not_count_as_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    jobs = Jobs(str, Watch())
    about = {"title": "rerun", "by": "anna", "back": "/", "back_text": "Overview"}
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TooMany, match="nothing was done"):
            jobs.start(_nothing, **about)
    assert jobs.running() == []
    assert jobs.start(_nothing, **about).over.wait(10)


def _nothing(_: Any) -> int:
    return 0
