"""Lock centres on real servers, for tests; each has names of its own."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from msgworker.coordination import DatabaseLocks, LockCentre, RedisLocks, ZooKeeperLocks

KINDS = ["sqlite", "postgresql", "mariadb", "redis", "zookeeper"]
NETWORKED = KINDS[1:]


def connect(url: str, *, session: float = 10.0) -> LockCentre:
    """A centre on connections of its own. session: seconds, of ZooKeeper."""
    if url.startswith("redis://"):
        return RedisLocks.from_url(url)
    if url.startswith("zookeeper://"):
        from kazoo.client import KazooClient

        client = KazooClient(hosts=url.removeprefix("zookeeper://"), timeout=session)
        client.start(timeout=30)
        made = ZooKeeperLocks(client)
        made._opened = True  # so that `close` ends it
        return made
    return DatabaseLocks(url)


@dataclass
class Place:
    """One kind of centre on its server."""

    kind: str
    url: str
    mark: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    made: list[LockCentre] = field(default_factory=list)

    def name(self, what: str = "x") -> str:
        """A name that no other test uses."""
        return f"{self.mark}:{what}"

    def locks(self, url: str | None = None, *, session: float = 10.0) -> LockCentre:
        """A centre, closed at the end of the test. url: another way to the same server."""
        made = connect(url or self.url, session=session)
        self.made.append(made)
        return made

    def close(self) -> None:
        for one in self.made:
            one.close()
            if isinstance(one, DatabaseLocks):
                one.engine.dispose()
