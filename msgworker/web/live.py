"""One poller for all viewers, the event stream, and the numbers beside the names of pages."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from msgworker.logs import logger
from msgworker.message import State
from msgworker.queries.counts import Overview
from msgworker.web.sessions import Session, Sessions

# --- The numbers beside the names of pages: what needs help, wherever the viewer is.
#
# See sections.py for when they are read.

OLD_SECONDS = 120.0
"""After so long without an answer nothing is shown rather than what was."""
PENDING: ContextVar[asyncio.Future[Any] | None] = ContextVar("msgworker_badges", default=None)
"""The read of them for this request: beside what its page reads, and awaited before it is shown."""
BADGED = ("failures", "instances")
"""The routes of pages with a number."""


class Badges:
    """What was read last. Used on the event loop, and by the poller's thread, which only
    replaces it."""

    def __init__(self) -> None:
        self._found: Mapping[str, tuple[str, str]] = {}
        self._read_at: float | None = None

    def note(self, found: Overview) -> None:
        """An overview was read."""
        dead = found.count(State.DEAD)
        self._found = {
            name: (text, word)
            for name, count, text, word in (
                ("failures", dead.count, str(dead), "dead messages"),
                ("instances", found.dead, str(found.dead), "dead instances"),
            )
            if count
        }
        self._read_at = time.monotonic()

    def forget(self) -> None:
        """Nothing was read."""
        self._found, self._read_at = {}, None

    @property
    def age(self) -> float:
        """Seconds since they were read; infinite if never."""
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    def shown(self) -> Mapping[str, tuple[str, str]]:
        """By route: the number, and what it counts."""
        return self._found if self.age < OLD_SECONDS else {}


# --- One poller for all viewers, and the event stream that tells them what to load anew.
#
# A part is a name and a function of the site that returns what matters of it: a page of ops,
# without ages. While a viewer follows a part, the poller calls that function every POLL_SECONDS
# and sends the name when the value has changed, and every AGES_SECONDS, because ages grow. All
# viewers load at that moment, and `Site.look` gives all of them the answer of the first. So many
# viewers cost the database what one does. What they cost this process grows with their number, so
# it polls less often where that takes more than SHARE of a processor: workers may need it. The
# poller starts with the first viewer and ends with the last.

POLL_SECONDS = 2.0
SHARE = 0.02
MOST_POLL_SECONDS = 15.0
AGES_SECONDS = 15.0
BEAT_SECONDS = 15.0
"""A comment after so long without an event: a stream whose reader is gone is noticed."""
STREAM_SECONDS = 300.0
"""After so long a stream ends and the browser begins another one, which is admitted anew."""
AGAIN_MS = 500
"""When a browser does so."""
MOST_STREAMS = 200
Part = Callable[[Any], Any]
"""Gets the site; called in a thread."""
log = logger("msgworker.web")


@dataclass(eq=False)
class Stream:
    """What one viewer follows. admitted: whether the viewer still is; asked at each poll. waiting:
    names that were not sent yet."""

    parts: frozenset[str]
    admitted: Callable[[], bool] = lambda: True
    waiting: set[str] = field(default_factory=set)
    bell: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, names: Iterable[str]) -> None:
        """A stream that is read slowly gets each name once."""
        self.waiting |= self.parts & frozenset(names)
        if self.waiting:
            self.bell.set()


class Live:
    """The poller and its streams. Used on the event loop only, but for `stop`."""

    def __init__(
        self,
        parts: Mapping[str, Callable[[], Awaitable[Any]]],
        forget: Callable[[], None],
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """parts: what reads each; forget: called before a change is told."""
        self._parts = parts
        self._forget = forget
        self._poll_seconds = poll_seconds
        self._streams: set[Stream] = set()
        self._poller: asyncio.Task[None] | None = None
        self._seen: dict[str, tuple[Any, float]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False
        self.polls = 0
        """How many reads the poller has made."""

    def stop(self) -> None:
        """End all streams; any thread and a signal handler may call it."""
        self.stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for stream in self._streams:
            stream.bell.set()

    def ask_again(self) -> None:
        """End the streams of those who are not admitted any more."""
        for stream in self._streams:
            if not stream.admitted():
                stream.bell.set()

    def join(self, names: Iterable[str], admitted: Callable[[], bool] = lambda: True) -> Stream:
        """A place among the streams, until `leave`. Raises HTTPException 400, 503."""
        wanted = frozenset(names)
        if not wanted or not wanted <= self._parts.keys():
            raise HTTPException(400, f"parts to follow are {', '.join(sorted(self._parts))}")
        if len(self._streams) >= MOST_STREAMS:
            raise HTTPException(503, "too many viewers follow; load the page again to see more")
        stream = Stream(wanted, admitted)
        self._streams.add(stream)
        self._loop = asyncio.get_running_loop()
        if self._poller is None or self._poller.done():
            self._seen.clear()
            self._poller = asyncio.create_task(self._poll())
        return stream

    def leave(self, stream: Stream) -> None:
        """Give the place back."""
        self._streams.discard(stream)
        if not self._streams and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def text(self, stream: Stream) -> AsyncIterator[str]:
        """The text of an event stream; ends with `stop`, when the viewer is not admitted any more,
        and after STREAM_SECONDS."""
        end = time.monotonic() + STREAM_SECONDS
        yield "retry: 5000\n\n"
        while not self.stopped and stream.admitted():
            stream.bell.clear()
            names, stream.waiting = sorted(stream.waiting), set()
            for name in names:
                yield f"event: part\ndata: {name}\n\n"
            if time.monotonic() >= end:
                yield f"retry: {AGAIN_MS}\n\n"
                return
            try:
                await asyncio.wait_for(stream.bell.wait(), BEAT_SECONDS)
            except TimeoutError:
                yield ": \n\n"

    async def _poll(self) -> None:
        while True:
            begun, used = time.monotonic(), time.thread_time()
            wanted = frozenset().union(*(stream.parts for stream in self._streams))
            changed = [name for name in sorted(wanted) if await self._has_changed(name)]
            for stream in list(self._streams):
                stream.tell(changed)
            self.ask_again()
            await asyncio.sleep(self._poll_seconds)
            took = time.thread_time() - used  # of the event loop, with what viewers have loaded
            rest = took / SHARE - (time.monotonic() - begun)
            await asyncio.sleep(min(max(0.0, rest), MOST_POLL_SECONDS - self._poll_seconds))

    async def _has_changed(self, name: str) -> bool:
        before, told = self._seen.get(name, (None, 0.0))
        now = time.monotonic()
        try:
            self.polls += 1
            value: Any = repr(await self._parts[name]())
        except HTTPException as error:  # a page that is loaded now says it too
            value = error.detail
        except Exception:
            log.exception("the part %s cannot be read", name)
            return False
        if value == before and now - told < AGES_SECONDS:
            return False
        self._seen[name] = (value, now)
        self._forget()  # what is loaded now must not be older than this
        return True


class EventStream(StreamingResponse):
    """An answer that has its place among the streams for as long as it is sent."""

    def __init__(self, live: Live, stream: Stream) -> None:
        headers = {"X-Accel-Buffering": "no"}
        super().__init__(live.text(stream), media_type="text/event-stream", headers=headers)
        self._leave = functools.partial(live.leave, stream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def events(request: Request) -> Response:
    """The event stream; `part` names what to follow, as often as needed."""
    site = request.app.state.site
    session: Session | None = request.state.session
    by_session = request.state.viewer is not None and request.state.viewer.by == "session"
    admitted = functools.partial(_is_valid, site.sessions, session if by_session else None)
    stream = site.live.join(request.query_params.getlist("part"), admitted)
    return EventStream(site.live, stream)


def _is_valid(sessions: Sessions, session: Session | None) -> bool:
    return session is None or sessions.is_valid(session)


routes = [Route("/events", events, name="events")]
