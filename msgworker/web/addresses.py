"""Addresses: the peer of a request, proxies, and what is of this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.requests import HTTPConnection

from msgworker.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def header_name(text: str) -> str:
    """The name of a header, in lower case; raises ConfigError."""
    if not text.isascii() or not text.replace("-", "").isalnum():
        raise ConfigError(f"a header is named such as X-Remote-User, got {text!r:.60}")
    return text.lower()


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


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
