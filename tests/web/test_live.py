"""Event streams: what they cost, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from msgworker import App
from msgworker.web import live, sessions
from tests.support.waiting import until
from tests.support.web import HERE, SESSION, Browser, dashboard_with


def test_many_viewers_cost_what_one_costs_and_none_costs_nothing() -> None:
    value, reads, forgotten = [1], [], []

    async def read() -> int:
        reads.append(1)
        return value[0]

    async def scene() -> None:
        poller = live.Live({"counts": read}, lambda: forgotten.append(1), poll_seconds=0.01)
        joined = [poller.join(["counts"]) for _ in range(50)]
        streams = [poller.text(one) for one in joined]
        first = [await anext(stream) for stream in streams]
        assert set(first) == {"retry: 5000\n\n"}
        assert {await anext(stream) for stream in streams} == {"event: part\ndata: counts\n\n"}
        value[0] = 2
        assert {await anext(stream) for stream in streams} == {"event: part\ndata: counts\n\n"}
        assert len(reads) == poller.polls  # not 50 times that
        assert len(forgotten) == 2  # only what has changed is told
        for one in joined:
            poller.leave(one)
        seen = len(reads)
        await asyncio.sleep(0.05)
        assert len(reads) == seen
        with pytest.raises(HTTPException, match="counts"):
            poller.join(["nothing"])

    asyncio.run(scene())


@pytest.mark.parametrize("costly", [False, True])
def test_what_costs_much_is_polled_less_often(costly: bool) -> None:
    """The event loop has two hundredths of a processor for it, with what viewers load."""

    async def read() -> int:
        until = time.thread_time() + (0.04 if costly else 0.0)
        while time.thread_time() < until:
            pass
        return 1

    async def scene() -> int:
        poller = live.Live({"counts": read}, lambda: None, poll_seconds=0.01)
        joined = poller.join(["counts"])
        await asyncio.sleep(1.0)
        poller.leave(joined)
        return poller.polls

    polls = asyncio.run(scene())
    assert polls == 1 if costly else polls > 3


def test_a_stop_ends_the_streams() -> None:
    async def read() -> int:
        return 1

    async def scene() -> list[str]:
        poller = live.Live({"counts": read}, lambda: None)
        stream = poller.text(poller.join(["counts"]))
        found = [await anext(stream), await anext(stream)]
        threading.Timer(0.01, poller.stop).start()
        return found + [one async for one in stream]

    assert len(asyncio.run(asyncio.wait_for(scene(), 5))) == 2


@pytest.mark.parametrize("how", ["log-out", "expiry"])
def test_the_end_of_a_session_ends_its_streams(
    full_app: App, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the server, within a poll; a copy of its cookie is worth nothing."""
    dashboard = dashboard_with(full_app)
    statuses: list[int] = []
    with Browser(dashboard) as client:  # one event loop for all
        client.log_in()
        copy = {"cookie": f"{SESSION}={client.cookies[SESSION]}"}
        client.cookies.clear()

        def follow() -> None:
            found = client.get("/events?part=counts", headers=copy)  # returns when it has ended
            statuses.append(found.status_code)

        stream = threading.Thread(target=follow)
        stream.start()
        until(lambda: dashboard.site.live.polls, "a poll")
        assert statuses == []
        if how == "log-out":
            page = client.get("/", headers=copy).text
            (csrf,) = set(re.findall(r'name="csrf" value="([\w-]+)"', page))
            sent = {**copy, "origin": HERE}
            found = client.post("/logout", data={"csrf": csrf}, headers=sent)
            assert found.status_code == 303
        else:
            now = time.time()
            monkeypatch.setattr("msgworker.web.sessions.time.time", lambda: now + 13 * 3600)
        stream.join(10)
        assert statuses == [200]
        assert client.get("/", headers=copy).headers["location"] == "/login"


def test_more_log_outs_than_are_kept_end_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_ENDED", 3)
    made = sessions.Sessions()
    ann = sessions.entry("a-token-of-the-tests", "test", name="ann")
    begun = [made.begin(ann) for _ in range(5)]
    for one in begun[:3]:
        made.end(one)
    assert [made.is_valid(one) for one in begun] == [False] * 3 + [True] * 2
    made.end(begun[3])
    assert not any(made.is_valid(one) for one in begun)


def test_a_browser_that_never_logged_in_ends_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every browser could end those of all."""
    monkeypatch.setattr(sessions, "MOST_ENDED", 1)
    made = sessions.Sessions()
    ann = made.begin(sessions.entry("a-token-of-the-tests", "test", name="ann"))
    for _ in range(3):
        made.end(made.begin())
    assert made.is_valid(ann)


def test_no_more_streams_than_there_are_places_for_begin_at_once() -> None:
    async def read() -> int:
        return 1

    async def scene() -> None:
        poller = live.Live({"counts": read}, lambda: None)
        joined = [poller.join(["counts"]) for _ in range(live.MOST_STREAMS)]  # none is read yet
        with pytest.raises(HTTPException, match="too many"):
            poller.join(["counts"])
        poller.leave(joined[0])
        poller.join(["counts"])
        poller.stop()

    asyncio.run(scene())


def test_a_stream_gives_its_place_back_however_it_ends() -> None:
    """Also if its client was gone before the first byte."""

    async def read() -> int:
        return 1

    async def gone(message: object) -> None:
        raise OSError

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def scene() -> None:
        poller = live.Live({"counts": read}, lambda: None)
        for _ in range(live.MOST_STREAMS + 5):
            answer = live.EventStream(poller, poller.join(["counts"]))
            with contextlib.suppress(Exception):
                await answer({"type": "http"}, receive, gone)
        poller.stop()

    asyncio.run(scene())


def test_a_stream_ends_after_a_while_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its viewer is admitted anew, whatever the way."""
    monkeypatch.setattr(live, "STREAM_SECONDS", 0.0)

    async def read() -> int:
        return 1

    async def scene() -> list[str]:
        poller = live.Live({"counts": read}, lambda: None)
        return [one async for one in poller.text(poller.join(["counts"]))]

    assert asyncio.run(scene()) == ["retry: 5000\n\n", f"retry: {live.AGAIN_MS}\n\n"]
