"""What all pairs have in common, whatever their servers are.

What a user has: an address that leads to the primary (here a Proxy), a standby, and something that
promotes it. `fail_over` is one failover; afterwards there is a new standby.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tests.servers import START_SECONDS, CannotHave
from tests.support.proxy import Proxy

M = TypeVar("M", bound=Any)
"""A server that can `follow` another, new and running; `promote`, with all that was received;
`take_writes`, once its standby is there, or `take_writes_alone`, as an old primary that comes back
and was not told so; and `crash`."""


class Pair(Generic[M]):
    """A primary with a standby."""

    protocol = ""  # of tests/support/proxy.py

    def __init__(self) -> None:
        self.primary, self.standby = self.server(), self.server()

    def server(self) -> M:
        """One that is neither of them yet."""
        raise NotImplementedError

    def make(self, database: str) -> str:
        """Make a database; the URL through the proxy of one who may write to it."""
        raise NotImplementedError

    def wait_for_standby(self) -> None:
        """Until it follows; where a COMMIT waits for it, until it is waited for."""
        raise NotImplementedError

    def wait_for_replay(self) -> None:
        """Until all that is committed now shows on the standby, too."""
        raise NotImplementedError

    def start(self) -> None:
        """Raises CannotHave."""
        try:
            self.primary.prepare()
            self.primary.start()
            self.standby.follow(self.primary)
            self.primary.take_writes()
            self.wait_for_standby()
            self.proxy = Proxy(self.primary.port, self.protocol)
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        """Through the proxy, without a database, as its administrator."""
        return self.primary.url.replace(str(self.primary.port), str(self.proxy.port))

    def promote(self) -> M:
        """The standby is the primary now, and has no standby; returns the old one. The proxy is
        not turned."""
        self.standby.promote()
        old, self.primary = self.primary, self.standby
        return old

    def turn(self) -> None:
        """Connections lead to the primary."""
        self.proxy.turn(self.primary.port)

    def mend(self) -> None:
        """A new standby."""
        self.standby = self.server()
        self.standby.follow(self.primary)
        self.wait_for_standby()

    def fail_over(self, seconds: float = 0.0, shown: bool = False) -> None:
        """Kill the primary; after so long the standby is promoted. shown: connections lead to it
        before it is promoted."""
        self.primary.crash()
        if shown:
            self.proxy.turn(self.standby.port)
        time.sleep(seconds)
        self.promote().remove()
        self.turn()
        self.mend()

    def remove(self) -> None:
        if hasattr(self, "proxy"):
            self.proxy.close()
        for server in (self.standby, self.primary):
            server.remove()


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise CannotHave(f"the standby does not follow: not {what}")
        time.sleep(0.05)
