"""Who may see the dashboard, and who may act, from which address: tokens with their roles, the
signed cookie of a browser, a proxy, a callable."""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import inspect
import ipaddress
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from itsdangerous import BadData, Signer, URLSafeSerializer
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from msgworker.errors import ConfigError
from msgworker.payload import clean, is_text

# --- Tokens, from a file that only its owner may read or from the environment; and what a role is.

TOKEN_VARIABLE = "MSGWORKER_WEB_TOKEN"
LEAST_TOKEN = 16
"""The fewest characters of a token; shorter ones can be guessed."""
MOST_NAME = 100


RoleName = Literal["viewer", "operator", "admin"]


class Role(enum.IntEnum):
    """What a viewer may do; each role may do what those before it may.

    VIEWER reads. OPERATOR also acts on messages, topics and instances. ADMIN also does what cannot
    be taken back or changes what is declared: purge, schedules, limits.
    """

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @classmethod
    def of(cls, word: Any) -> Role:
        """The role of a name, "viewer", "operator" or "admin"; raises ConfigError."""
        if isinstance(word, Role):
            return word
        if isinstance(word, str) and word.upper() in cls.__members__:
            return cls[word.upper()]
        raise ConfigError(f"a role is viewer, operator or admin, got {word!r:.60}")

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Entry:
    """A token and whose it is. role: None = that of the site."""

    name: str
    token: str = field(repr=False)
    role: Role | None = None


def read_tokens(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """The tokens of a file that only its owner may read: a line with a TOKEN alone, or
    `NAME ROLE TOKEN`; `#` begins a comment. Raises ConfigError."""
    place = Path(path)
    try:
        found = place.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{place} is not a regular file; a token file must be one")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise ConfigError(
                f"{place} may be read or written by others (mode {mode:04o}): chmod 600 {place}"
            )
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{place} cannot be read: {why}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) not in (1, 3):
            raise ConfigError(f"{place} line {number} must be TOKEN, or NAME ROLE TOKEN")
        name, role = ("token", None) if len(words) == 1 else (words[0], Role.of(words[1]))
        entries.append(entry(words[-1], f"{place} line {number}", name=name, role=role))
    return checked(entries, str(place))


def tokens_from(environ: Mapping[str, str]) -> tuple[Entry, ...]:
    """The token of the environment, if there is one; raises ConfigError."""
    given = environ.get(TOKEN_VARIABLE)
    return () if given is None else (entry(given.strip(), TOKEN_VARIABLE),)


def entry(token: str, place: str, *, name: str = "token", role: Role | None = None) -> Entry:
    """A checked entry. The error does not repeat the token."""
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{place}: a token has at least {LEAST_TOKEN} printable ASCII characters; make one "
            'with `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )
    return Entry(clean(name, MOST_NAME), token, role)


def checked(entries: Sequence[Entry], place: str) -> tuple[Entry, ...]:
    """Some entries, each name and each token once; raises ConfigError."""
    if not entries:
        raise ConfigError(f"{place} has no token")
    for what, values in (
        ("name", [one.name for one in entries]),
        ("token", [one.token for one in entries]),
    ):
        if len(set(values)) < len(values):
            raise ConfigError(f"{place} has the same {what} twice")
    return tuple(entries)


# --- The cookie of a browser, signed, and the token that the forms of a session carry.

SESSION_SECONDS = 12 * 3600
MOST_ENDED = 10_000
"""The most log-outs that are kept of one name; with one more all sessions of that name end that had
begun before."""
MOST_COOKIES = 8
"""Of one name that are looked at."""
COOKIE = "msgworker_session"
SIGNED: Any = {"key_derivation": "hmac", "digest_method": hashlib.sha256}


def cookies_of(request: HTTPConnection, name: str) -> list[str]:
    """The first MOST_COOKIES values of a cookie of ours. There are several where dashboards of one
    host are at "/" and at "/queue", or were: a browser sends that of the longest path first. Ours
    need no quotes, and to undo quotes takes Python before 3.11.10 and 3.12.6 the square of their
    length (CVE-2024-7592)."""
    found = []
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            key, _, value = part.partition("=")
            if key.strip() == name:
                found.append(value.strip())
    return found[:MOST_COOKIES]


def is_secure(scope: Scope) -> bool:
    """Whether the browser came by https. What a client says of that concerns its own cookie alone,
    so it is believed: of a proxy that is not named, and of the page that a form was on."""
    headers = Headers(scope=scope)
    origin, proto = headers.get("origin", ""), headers.get("x-forwarded-proto", "")
    return "https" in (scope.get("scheme"), urlsplit(origin).scheme, proto.strip().lower())


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie says. sid: new for each browser. name, proof: of the token it was made with, ""
    where no log-in came first: then it is only there for the token of forms. proof: keyed, so that
    who has the cookie cannot try tokens by it. until: epoch s."""

    sid: str
    name: str
    proof: str
    until: float


class Sessions:
    """Signs and reads the cookie, makes the token that each form carries, and keeps who has logged
    out.

    key: of the signature, at least 32 characters; None = a new one, so that sessions end with
    the process. Another process with the same key does not know of a log-out in this one.
    """

    def __init__(self, key: str | None = None, *, seconds: int = SESSION_SECONDS) -> None:
        if key is not None and len(key) < 32:
            raise ConfigError("the key of sessions must have at least 32 characters")
        self._key = secrets.token_bytes(32) if key is None else key.encode("utf-8")
        self._given = key is not None
        self._cookies = URLSafeSerializer(
            self._key, salt="msgworker session", signer_kwargs=dict(SIGNED)
        )
        self.seconds = seconds
        self._ended: dict[str, dict[str, float]] = {}
        self._least_until: dict[str, float] = {}

    def cookie(self, scope: Scope) -> str:
        """The name of the cookie: browsers send those of a host to each port of it, so that two
        dashboards there need two names. Processes with one key share their sessions."""
        server = scope.get("server") or ("", None)
        of = self._signature("name", "")[:8] if self._given else server[1]
        return COOKIE if of is None else f"{COOKIE}_{of}"

    def proof_of(self, entry: Entry) -> str:
        """Proof that a session was begun with this token: it ends when the token changes."""
        return self._signature("proof", entry.token)

    def begin(self, entry: Entry | None = None) -> Session:
        """A new session, of one who has logged in or of none."""
        name, proof = ("", "") if entry is None else (entry.name, self.proof_of(entry))
        return Session(secrets.token_urlsafe(18), name, proof, time.time() + self.seconds)

    def text_of(self, session: Session) -> str:
        values = [session.sid, session.name, session.proof, session.until]
        return str(self._cookies.dumps(values))

    def of(self, request: HTTPConnection) -> list[Session]:
        """The sessions of a request, the one that counts first: that of a log-in, else any."""
        texts = cookies_of(request, self.cookie(request.scope))
        found = [one for one in map(self.read, texts) if one is not None]
        return sorted(found, key=lambda one: not one.name)

    def read(self, text: str | None) -> Session | None:
        """The session of a cookie; None if it is not ours or has expired."""
        try:
            found = Session(*self._cookies.loads((text or "").encode("utf-8", "replace")))
        except BadData:
            return None
        return found if self.is_valid(found) else None

    def is_valid(self, session: Session) -> bool:
        """Whether it has neither expired nor been ended."""
        ended = session.sid in self._ended.get(session.name, ())
        early = session.until <= self._least_until.get(session.name, 0.0)
        return not ended and not early and session.until >= time.time()

    def end(self, session: Session | None) -> None:
        """Log out: the cookie is invalid from now on, and so are copies of it."""
        if session is None or not session.name:
            return
        ended = self._ended.setdefault(session.name, {})
        if len(ended) >= MOST_ENDED:
            now = time.time()
            for sid in [sid for sid, until in ended.items() if until < now]:
                del ended[sid]
        if len(ended) >= MOST_ENDED:
            self._least_until[session.name] = time.time() + self.seconds
            ended.clear()
        ended[session.sid] = session.until

    def form_token(self, session: Session) -> str:
        """What a form of this session has to carry."""
        return self._signature("form", session.sid)

    def is_form_token(self, session: Session, given: str) -> bool:
        return self._signer("form").verify_signature(session.sid, given)

    def _signature(self, purpose: str, text: str) -> str:
        return self._signer(purpose).get_signature(text).decode()

    def _signer(self, purpose: str) -> Signer:
        return Signer(self._key, salt=f"msgworker {purpose}", **SIGNED)


# --- Addresses: the peer of a request, proxies, and what is of this machine.

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def header_name(text: str) -> str:
    if not text.isascii() or not text.replace("-", "").isalnum():
        raise ConfigError(f"a header is named such as X-Remote-User, got {text!r:.60}")
    return text.lower()


def checked_host(name: str) -> str:
    """A name as in the header Host, with its port if it has one; raises ConfigError."""
    try:
        parts = urlsplit(f"//{name}")
        fine = bool(parts.hostname) and parts.netloc == name and "@" not in name and "*" not in name
        _ = parts.port
    except ValueError:
        fine = False
    if not fine or any(c.isspace() for c in name) or not is_text(name):
        raise ConfigError(
            f"an allowed host is NAME or NAME:PORT as browsers send it, got {name!r:.80}"
        )
    return name.lower()


def is_address(host: str) -> bool:
    """Whether a header Host names an address, not a name; with a port or without."""
    try:
        ipaddress.ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return True


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks; raises ConfigError."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text.strip()))
        except ValueError as error:
            raise ConfigError(f"a proxy is an address or a network: {error}") from None
    return tuple(found)


def address_of(request: HTTPConnection) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The peer of the connection; None for a socket without addresses."""
    try:
        found = ipaddress.ip_address(request.client.host if request.client else "")
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_of(networks: Iterable[Network], request: HTTPConnection) -> bool:
    peer = address_of(request)
    return peer is not None and any(peer in network for network in networks)


def forwarded_for(networks: Iterable[Network], request: HTTPConnection) -> str | None:
    """The client as the trusted proxies before us name it: the last address of X-Forwarded-For that
    is none of theirs. None if there is none."""
    known = tuple(networks)
    for text in reversed(",".join(request.headers.getlist("x-forwarded-for")).split(",")[-20:]):
        bare = text.strip().removeprefix("[").partition("]")[0]
        if bare.count(":") == 1:  # with a port
            bare = bare.partition(":")[0]
        try:
            found = ipaddress.ip_address(bare)
        except ValueError:
            return None
        if not any(found in network for network in known):
            return str(found)
    return None


def client_of(request: HTTPConnection) -> str:
    """From where a request comes, for the audit and the log."""
    named: str | None = getattr(request.state, "client", None)
    return named or (request.client.host if request.client else "?")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- Who may see the dashboard, and who may act.
#
# A door admits a request, or does not; the guard asks it for every request but those of
# `/healthz`, `/readyz`, the login form and static files. Secrets are compared by
# `hmac.compare_digest`, names by `==`; no pattern decides who a viewer is.

FORWARDED = {
    *("cdn-loop", "cf-connecting-ip", "client-ip", "fastly-client-ip", "fly-client-ip"),
    *("forwarded", "true-client-ip", "via", "x-amzn-trace-id", "x-appengine-user-ip"),
    *("x-azure-clientip", "x-client-ip", "x-cloud-trace-context", "x-cluster-client-ip"),
    *("x-original-host", "x-original-url", "x-proxyuser-ip", "x-real-ip", "x-remote-user"),
    "x-scheme",
}
"""Headers by which a proxy names the client behind it; X-Forwarded-... and X-Envoy-... do so
too."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who sees a page. by: how it was admitted: token, basic, session, proxy, local or callable.

    A browser sends the proof of some of these by itself, so writes need more: `guard.SameOrigin`.
    """

    name: str
    role: Role
    by: str = "callable"


Proving = Callable[[Entry], str]
"""What a session with the token of an entry has, see `Sessions.proof_of`."""


class Door:
    """Admits requests. logs_in: whether a browser may log in with a token, by a form. challenge:
    WWW-Authenticate of a refusal, "" = none; why: its text."""

    logs_in = False
    challenge = ""
    why: str

    async def admit(self, request: HTTPConnection) -> Viewer | None:
        """Who it is; None refuses."""
        raise NotImplementedError

    def again(self, session: Session, proof_of: Proving) -> Viewer | None:
        """Who has logged in with this session, if the token is still the same."""
        return None


# ---------------- doors


@dataclass(frozen=True)
class Local(Door):
    """Admits programs of this machine, without a proxy between. For loopback only."""

    role: Role = Role.ADMIN
    why = (
        "without authentication the dashboard is for this machine only, and not behind a proxy; "
        "set a token, --trusted-proxy-header, or auth="
    )

    async def admit(self, request: HTTPConnection) -> Viewer | None:
        peer = address_of(request)
        if peer is None or not peer.is_loopback:
            return None
        old = request.scope.get("http_version") == "1.0"  # as nginx asks; no browser does
        proxied = any(
            header in FORWARDED or header.startswith(("x-forwarded-", "x-envoy-"))
            for header in request.headers
        )
        if old or proxied:
            return None  # the proxy is of this machine, its client may not be
        return Viewer("local", self.role, "local")


@dataclass(frozen=True)
class Tokens(Door):
    """Admits who has a token: `Authorization: Bearer TOKEN`, basic with NAME:TOKEN, or the form."""

    entries: tuple[Entry, ...]
    role: Role = Role.ADMIN
    logs_in = True
    challenge = 'Bearer realm="msgworker"'
    why = "log in with a token"

    async def admit(self, request: HTTPConnection) -> Viewer | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.viewer(given.strip(), "token")
        if scheme.lower() == "basic":
            try:
                text = base64.b64decode(given.strip(), validate=True).decode("utf-8")
            except ValueError:
                return None
            name, _, token = text.partition(":")
            found = self.viewer(token, "basic")
            return found if found is not None and found.name == name else None
        return None

    def viewer(self, token: str, by: str) -> Viewer | None:
        """Whose token it is. All are compared, so the time does not show how near a guess was."""
        given, found = token.encode("utf-8", "surrogatepass"), None
        for entry in self.entries:
            if hmac.compare_digest(given, entry.token.encode("utf-8")):
                found = entry
        return None if found is None else Viewer(found.name, found.role or self.role, by)

    def entry_of(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def again(self, session: Session, proof_of: Proving) -> Viewer | None:
        entry = self.entry_of(session.name)
        if entry is None or not hmac.compare_digest(proof_of(entry), session.proof):
            return None
        return Viewer(entry.name, entry.role or self.role, "session")


@dataclass(frozen=True)
class Proxied(Door):
    """Admits whom a trusted proxy names in a header. proxies: the networks it connects from.
    role_header: with the role of the user; if it has none, or another word, the role is viewer."""

    header: str
    proxies: Sequence[Network]
    role: Role = Role.ADMIN
    role_header: str | None = None

    @property
    def why(self) -> str:  # type: ignore[override]
        return f"the proxy in front has to name the user in {self.header}"

    async def admit(self, request: HTTPConnection) -> Viewer | None:
        if not is_of(self.proxies, request):
            return None
        given = request.headers.getlist(self.header)
        name = clean(_decoded(given[0]).strip(), MOST_NAME) if len(given) == 1 else ""
        return Viewer(name, self._role_of(request), "proxy") if name else None

    def _role_of(self, request: HTTPConnection) -> Role:
        if self.role_header is None:
            return self.role
        given = request.headers.getlist(self.role_header)
        try:
            return Role.of(given[0].strip()) if len(given) == 1 else Role.VIEWER
        except ConfigError:
            return Role.VIEWER


def _decoded(text: str) -> str:
    """The text of a header, which was read as Latin-1: proxies send UTF-8 too."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


Auth = Callable[[HTTPConnection], Any]
"""Of a program that mounts the dashboard: a Viewer, the name of one, or None to refuse; or a
coroutine of that."""


@dataclass(frozen=True)
class Asking(Door):
    """Admits whom a callable of the mounting program names."""

    fn: Auth
    role: Role = Role.VIEWER
    why = "the program that serves this dashboard does not admit you"

    async def admit(self, request: HTTPConnection) -> Viewer | None:
        found = self.fn(request)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, str):
            return Viewer(clean(found, MOST_NAME), self.role) if found else None
        if found is None or isinstance(found, Viewer):
            return None if found is None else Viewer(found.name, found.role, "callable")
        raise ConfigError(
            f"auth returns a Viewer, a name, or None to refuse; got {type(found).__name__}"
        )
