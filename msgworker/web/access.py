"""Who may see the dashboard, and who may act, from which address."""

from __future__ import annotations

import base64
import hmac
import inspect
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from msgworker.errors import ConfigError
from msgworker.payload import clean
from msgworker.web.sessions import MOST_NAME, Entry, Role, Session

# --- Addresses: the peer of a request, proxies, and what is of this machine.

__all__ = ["Asking", "Door", "Local", "Proxied", "Role", "Tokens", "Viewer"]

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
    if not fine or any(c.isspace() for c in name):
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

    @property
    def sent_on_purpose(self) -> bool:
        """Whether no browser sends the proof by itself, for a form of another site too."""
        return self.by == "token"


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
