"""What routes work with: templates, shared answers, and reads of the database with a deadline."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import quote, unquote, urlencode

import jinja2
from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from msgworker import __version__
from msgworker.commands import command, proposed
from msgworker.coordination.centres import LazyCentre
from msgworker.db import errors
from msgworker.db.connections import Attempt, refusal, watch
from msgworker.db.errors import masked, secrets_of
from msgworker.errors import DatabaseUnavailable, MsgworkerError, SchemaError
from msgworker.metrics.exposition import Scrapes
from msgworker.ops import Ops
from msgworker.queries.counts import Overview
from msgworker.store.bounded import Capped
from msgworker.web import shown, threads
from msgworker.web.access import (
    Door,
    Network,
    Role,
    Session,
    Sessions,
    Viewer,
    client_of,
    cookies_of,
    is_secure,
)

if TYPE_CHECKING:
    from msgworker import App

# --- The templates, and what all of them may use.

HERE = Path(__file__).parent


def environment(without: Callable[[str], str]) -> jinja2.Environment:
    """The templates. without: takes the secrets out of a text; the filter `scrub`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(shown.FILTERS)
    made.filters["scrub"] = lambda value: "" if value is None else without(str(value))
    made.filters["safe"] = _no_safe
    made.filters["proposed"] = proposed
    made.globals["command"] = command
    return made


def _no_safe(_: Any) -> str:
    raise TypeError("nothing is safe: a page escapes all it shows; make markup in charts.py")


R = TypeVar("R")

# --- Errors of ops that a page shows in place of a result.


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no result, and what to do about it."""

    text: str


def or_missing(call: Callable[..., R], *args: Any, **given: Any) -> R | Refused:
    """The result, or which table or column is missing."""
    try:
        return call(*args, **given)
    except SchemaError as error:
        return Refused(str(error))


def or_refused(call: Callable[[], R]) -> R | Refused:
    """The result, or why ops refuses: it is about what was asked for, not about the request."""
    try:
        return call()
    except DatabaseUnavailable:
        raise
    except MsgworkerError as error:
        return Refused(str(error))


# --- The numbers beside the names of pages: what needs help. `with_badges` reads them.

OLD_SECONDS = 120.0
"""Badges that are older than this are not shown."""
BADGED = {
    "failures": "dead messages",
    "lanes": "dead messages that hold up their object",
    "jobs": "dead messages that hold up their job",
    "instances": "dead instances",
}
"""The routes of pages with a number, and what it counts."""


class Badges:
    """What was read last. Used on the event loop, and by the poller's thread, which only
    replaces it."""

    def __init__(self) -> None:
        self._found: Mapping[str, tuple[str, str]] = {}
        self._read_at: float | None = None

    def note(self, found: Overview) -> None:
        counts = (found.unacknowledged, found.hold_objects, found.hold_jobs, Capped(found.dead))
        told = zip(BADGED.items(), counts, strict=True)
        self._found = {name: (str(n), word) for (name, word), n in told if n.count}
        self._read_at = time.monotonic()

    def forget(self) -> None:
        self._found, self._read_at = {}, None

    @property
    def age(self) -> float:
        """Seconds since they were read; infinite if never."""
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    def shown(self) -> Mapping[str, tuple[str, str]]:
        """By route: the number, and what it counts."""
        return self._found if self.age < OLD_SECONDS else {}


# --- What routes work with: templates, and reads of the database in threads with a deadline.
#
# A page reads by `Site.look` (shared by all viewers for a moment) or `Site.ask`, never itself: the
# event loop must not wait for a database.

P = ParamSpec("P")
THREADS = 8
"""The most reads at once; each has a connection of the App's pool."""
WAITING = 64
"""The most requests that wait for one of them; more are refused with 503."""
DEADLINE_SECONDS = 10.0
MOST_COUNTS = 3
"""The most dry runs at once: they leave threads to the pages."""
COUNTED = 10_000
"""The most messages that a dry run counts, as on other pages."""
EXPECTED_SECONDS = 45.0
"""Seconds for the count before a write, which checks that the selection has not changed."""
SHARED_SECONDS = 2.0
POLL_SECONDS = 5.0
"""How often a page that is open loads what changes (page.js), and how long all viewers get the same
of it: so many viewers cost the database what one does."""
STEADY_SECONDS = 20.0
"""How long all viewers get the same of what is written once a minute."""
SHARED_MOST = 256
SECTIONS_MOST = 64
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "msgworker_theme"


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """What is set for the whole dashboard.

    root_path: where a proxy or the mounting program serves it. actions: whether viewers may do more
    than look. hosts: further names that it answers to. proxies: whose X-Forwarded-Host and -Proto
    are believed. redact: what is hidden of payloads, see `shown.Redaction`. label: shown beside the
    name, such as PROD. deadline: the most seconds of a read. values: name, value and origin of each
    setting, without secrets. elsewhere: locks that are not in the database.
    """

    root_path: str = ""
    actions: bool = False
    hosts: tuple[str, ...] = ()
    proxies: tuple[Network, ...] = ()
    redact: shown.Redaction = field(default_factory=shown.Redaction)
    label: str = ""
    deadline: float = DEADLINE_SECONDS
    values: tuple[tuple[str, Any, str], ...] = ()
    elsewhere: LazyCentre | None = None


class Site:
    """What routes work with: `request.app.state.site`."""

    def __init__(
        self,
        app: App,
        options: DashboardOptions,
        door: Door,
        sessions: Sessions,
        nav: Sequence[tuple[str, str]],
    ) -> None:
        self.app = app
        self.options = options
        self.door = door
        self.sessions = sessions
        self.nav = nav
        self.scrapes = Scrapes(app, lambda: app.ops)
        self.badges = Badges()
        self.elsewhere = options.elsewhere
        self.secrets = secrets_of(app.engine.url)
        if self.elsewhere is not None:
            self.secrets = {*self.secrets, *self.elsewhere.secrets}
        watch(app.engine)
        self._watch = threads.Watch()
        self.threads = threads.ReadThreads(THREADS, self._watch, options.deadline + 1)
        self._waiting = 0
        self._counts = 0
        self._shared, self._steady = threads.Sharing(SHARED_MOST), threads.Sharing(SHARED_MOST)
        self.sections = threads.Sharing(SECTIONS_MOST)
        self.writes = threads.RunningWrites(self._why, self._watch)
        self.read_errors = threads.ReadErrors(app.engine, self.without, options.deadline)
        self.templates = environment(self.without)
        self.starlette: Starlette

    def close(self) -> None:
        """End the threads; a read that still runs ends at its deadline, a write after its step."""
        self.writes.stop()
        self.threads.close()
        self._watch.close()
        if self.elsewhere is not None:
            self.elsewhere.close()

    # ------------------------------------------------------------ the database

    @property
    def ops(self) -> Ops:
        """For reads: what takes longer than the deadline is ended by the database. Writes, which
        are short steps, go by `app.ops`."""
        return self.app.ops.within(self.options.deadline)

    def acting(self, request: HTTPConnection) -> Ops:
        viewer = self.viewer(request)
        return self.writing(actor=viewer.name, source=f"web, {viewer.by}, {client_of(request)}")

    def writing(self, **who: Any) -> Ops:
        """For writes; `who`: see `ops.acting`. What they count first has a deadline."""
        return self.app.ops.within(EXPECTED_SECONDS).acting(**who)

    async def ask(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function of `ops`, or of `app.ops`, in a thread; returns its result.

        Raises HTTPException, see `ReadErrors`. A write that is answered so is cancelled: it commits
        nothing after that, and the answer says how much is done.
        """
        if self._waiting >= WAITING:
            raise threads.Busy("too many requests wait for the database; try again")
        self._waiting += 1
        limit = self.options.deadline
        attempt, call = Attempt(limit), functools.partial(fn, *args, **kwargs)
        try:
            asked = asyncio.wrap_future(self.threads.submit(attempt, call))
            found = await asyncio.wait_for(asked, limit + 1)
        except asyncio.CancelledError:
            attempt.give_up()
            raise
        except Exception as error:
            answer = self.read_errors.answer(error, attempt.give_up())
            if answer is None:
                raise
            raise answer from error
        finally:
            self._waiting -= 1
        return found

    async def count(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`ask` for a dry run; raises HTTPException 503 if too many count."""
        if self._counts >= MOST_COUNTS:
            raise threads.Busy(f"{self._counts} dry runs count at this moment; try again")
        self._counts += 1
        try:
            return await self.ask(fn, *args, **kwargs)
        finally:
            self._counts -= 1

    async def look(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`ask`, shared: those who look at the same within 2 s get one answer. For reads whose
        arguments are hashable and whose result no caller changes."""
        call = functools.partial(fn, *args, **kwargs)
        return await self._shared.get(threads.key_of(call), SHARED_SECONDS, lambda: self.ask(call))

    async def overview(self) -> Overview:
        """`ops.overview`, shared; the numbers beside the names of pages are of it."""
        found = await self.look(self.ops.overview)
        self.badges.note(found)
        return found

    async def look_steadily(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for 20 s, whatever has changed meanwhile."""
        call = functools.partial(fn, *args, **kwargs)
        return await self._steady.get(threads.key_of(call), STEADY_SECONDS, lambda: self.ask(call))

    def forget(self, *, steady: bool = False) -> None:
        """Drop shared answers, because they are out of date. steady: also those kept for 20 s."""
        kept = (self._steady, self.badges, self.scrapes) if steady else ()
        for one in (self._shared, self.sections, *kept):
            one.forget()

    def _why(self, error: BaseException) -> str:
        """Why a write failed; which right the login lacks, if that is it."""
        if isinstance(error, DBAPIError):
            error = refusal(self.app.engine, error)
        return self.without(str(error))

    def without(self, text: str) -> str:
        """The text without the secrets of the database's URL."""
        return errors.without(text, self.secrets)

    # ------------------------------------------------------------ who

    def viewer(self, request: HTTPConnection) -> Viewer:
        found = request.state.viewer
        if found is None:
            raise HTTPException(401)
        assert isinstance(found, Viewer)
        return found

    def may(self, request: HTTPConnection, role: Role) -> bool:
        return request.state.viewer is not None and request.state.viewer.role >= role

    def need(self, request: HTTPConnection, role: Role) -> Viewer:
        """The viewer, who has the role; raises HTTPException 403."""
        viewer = self.viewer(request)
        if viewer.role < role:
            why = "this dashboard is for reading only; --allow-actions (actions=True) changes it"
            if self.options.actions:
                why = f"this needs the role {role}; yours is {viewer.role}"
            raise HTTPException(403, why)
        return viewer

    # ------------------------------------------------------------ answers

    def url(
        self,
        request: HTTPConnection,
        name: str,
        /,
        query: Mapping[str, Any] | None = None,
        **path: Any,
    ) -> str:
        """The path of a route, below root_path; of the query what is None or "" is left out."""
        parts = {name: quote(str(one), errors="replace") for name, one in path.items()}
        found = root_of(request.scope) + str(self.starlette.url_path_for(name, **parts))
        given = {k: v for k, v in (query or {}).items() if v is not None and v != ""}
        return f"{found}?{urlencode(given, doseq=True, errors='replace')}" if given else found

    def render(
        self, request: Request, template: str, /, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """A page; templates have `viewer`, `url`, `may`, `csrf` and the filters of `shown`."""
        session: Session | None = getattr(request.state, "session", None)
        theme = next(iter(cookies_of(request, THEME_COOKIE)), "auto")
        text = self.text(
            request,
            template,
            request=request,
            viewer=request.state.viewer,
            csrf="" if session is None else self.sessions.form_token(session),
            theme=theme if theme in THEMES else "auto",
            here=route_of(request.scope),
            this=self.this(request),
            nav=self.nav,
            now=datetime.now(UTC),
            version=__version__,
            **{"layout": "base.html"} | values,
        )
        return HTMLResponse(text, status)

    def text(self, request: Request, template: str, /, **values: Any) -> str:
        """A template with the values, and of the request only what depends on its URL and on the
        role of the viewer."""
        return self.templates.get_template(template).render(
            site=self,
            **shown.links(functools.partial(self.url, request)),
            may=lambda word: self.may(request, Role.of(word)),
            badges=self.badges.shown(),
            badged=BADGED,
            **values,
        )

    async def live(
        self, request: Request, template: str, values: Callable[[], Awaitable[Any]], *, live: bool
    ) -> Response:
        """A page whose sections follow what changes; a script that loads one gets what is between
        header and footer.

        What viewers see of that depends on the URL and on what they may do, and on nothing else of
        who they are: so it is made once for each URL and role. It has neither names nor tokens of a
        session; a template that uses one fails, as it is not given any.
        """
        if not live or request.headers.get("hx-request") != "true":
            found = await values()
            return found if isinstance(found, Response) else self.render(request, template, **found)
        this = self.this(request)
        key = (template, root_of(request.scope), this, self.viewer(request).role)

        async def make() -> bytes:
            found = await values()
            return self.text(request, template, layout="section.html", this=this, **found).encode()

        return HTMLResponse(await self.sections.get(key, POLL_SECONDS, make))

    @staticmethod
    def this(request: Request) -> str:
        """The path and query of the request, as a link has them."""
        query = request.scope["query_string"].decode("latin-1")
        return quote(request.scope["path"]) + (f"?{query}" if query else "")

    def refuse(self, request: Request, status: int, text: str) -> Response:
        """A page, or a problem document (RFC 9457) for the API and other programs."""
        title = shown.STATUS.get(status, "Error")
        if not wants_html(request):
            body = {"type": "about:blank", "title": title, "status": status, "detail": text}
            return JSONResponse(body, status, media_type="application/problem+json")
        log_in = self.log_in_at(request) if status == 401 and self.door.logs_in else ""
        values = {"title": title, "text": text, "code": status, "log_in": log_in}
        return self.render(request, "error.html", status, **values)

    def log_in_at(self, request: Request) -> str:
        """The form of the log-in, which leads on to the page that was asked for, or had the form
        that was sent."""
        place = self.this(request)
        if request.method != "GET":
            place = "/" + request.headers.get("referer", "").partition("://")[2].partition("/")[2]
        first = f"{root_of(request.scope)}/"
        return self.url(request, "login", {"next": None if place == first else place})

    def back(self, request: Request, given: str | None, default: str) -> RedirectResponse:
        """After a POST: to a page of ours that the form names, else to a named route."""
        text = given or ""
        safe = is_below(root_of(request.scope), text)
        return RedirectResponse(text if safe else self.url(request, default), 303)

    def route(self, name: str) -> str:
        """The path of a route without parameters, below root_path."""
        return str(self.starlette.url_path_for(name))

    def locks_at(self, elsewhere: bool) -> dict[str, Any]:
        """The argument of ops that says where a lock is; may wait for the lock centre."""
        there = self.elsewhere
        return {"centre": there.centre()} if elsewhere and there is not None else {}

    @property
    def place(self) -> str:
        """The table and its database, without secrets."""
        return f"{self.app.table.name} in {masked(self.app.engine.url)}"


def route_of(scope: Scope) -> str:
    """The path below the place where the dashboard is served, such as /messages."""
    return str(scope["state"]["route"])


def root_of(scope: Scope) -> str:
    """The path where the dashboard is served, "" or such as /queue."""
    return str(scope["state"]["root"])


def is_below(root: str, text: str) -> bool:
    """Whether a browser that is sent to this text stays below the root: "//host" and "/\\host" are
    of other sites, and ".." leads up."""
    path = unquote(re.split("[?#]", text, maxsplit=1)[0])
    inside = path.startswith(f"{root}/") and path[len(root) + 1 :][:1] not in ("/", "\\")
    plain = text.startswith("/") and text.isprintable() and "\\" not in text
    return inside and plain and not {".", ".."} & {*path.split("/")}


def wants_html(request: HTTPConnection) -> bool:
    """Whether a refusal should be a page."""
    return not route_of(request.scope).startswith("/api/") and "text/html" in request.headers.get(
        "accept", ""
    )


def set_cookie(scope: Scope, answer: Response, name: str, value: str, seconds: int) -> None:
    """A cookie of ours, for the place where the dashboard is served. A browser sends it with links
    from other sites, but not with their forms and scripts."""
    answer.set_cookie(
        name,
        value,
        max_age=seconds,
        path=root_of(scope) or "/",
        secure=is_secure(scope),
        httponly=True,
        samesite="lax",
    )


def paged(query: Mapping[str, str], after: Any, next_after: Any) -> dict[str, Any]:
    """The links of a page of a list: to the first, and to the next; None = there is none. after: of
    this page."""
    following = None if next_after is None else {**query, "after": next_after}
    return {"first": query if after else None, "more": following}


def or_404(found: R | None, text: str) -> R:
    """What was found; raises HTTPException 404 with the text if nothing was."""
    if found is None:
        raise HTTPException(404, text)
    return found


def site_of(request: HTTPConnection) -> Site:
    found: Site = request.app.state.site
    return found


# --- Pages: what each shows, at its path; and the numbers beside their names, see `Badges`.
#
# Those are read if they are older than BADGE_SECONDS, at the same time as what the page itself
# reads: no page waits long for them or fails with them.

BADGE_SECONDS = 20.0
WAIT_SECONDS = 0.5
H = TypeVar("H", bound=Callable[..., Awaitable[Any]])
PAGES: list[BaseRoute] = []
"""The routes of all pages, and of their forms."""


def page(
    path: str, template: str = "", *, live: bool = False, method: str = "GET"
) -> Callable[[H], H]:
    """The function behind this, of a Site and a Request, answers at a path, and returns what the
    template shows, or a Response; its name is that of the route. live: see `Site.live`."""

    def decorate(fn: H) -> H:
        async def answer(request: Request) -> Response:
            site = site_of(request)

            async def found() -> Any:
                """Beside what the page reads the badges are, if they are old."""
                if method != "GET":
                    return await fn(site, request)
                return (await asyncio.gather(fn(site, request), _read_badges(site, request)))[0]

            return await site.live(request, template, found, live=live)

        PAGES.append(Route(path, answer, methods=[method], name=fn.__name__))
        return fn

    return decorate


async def _read_badges(site: Site, request: Request) -> None:
    """Bring the badges up to date, if that takes no longer than WAIT_SECONDS."""
    if request.state.viewer is not None and site.badges.age >= BADGE_SECONDS:
        with suppress(TimeoutError, HTTPException):  # the page itself says what is wrong
            await asyncio.wait_for(site.overview(), WAIT_SECONDS)  # which notes them
