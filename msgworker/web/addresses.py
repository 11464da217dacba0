"""Addresses: the peer of a request, proxies, and what is of this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from msgworker.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def header_name(text: str) -> str:
    """The name of a header, in lower case; raises ConfigError."""
    if not text.isascii() or not text.replace("-", "").isalnum():
        raise ConfigError(f"a header is named such as X-Remote-User, got {text!r:.60}")
    return text.lower()


def checked_host(name: str) -> str:
    """A name as it stands in the header Host, with its port if it has one; raises ConfigError."""
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
    told: str | None = getattr(request.state, "client", None)
    return told or (request.client.host if request.client else "?")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
