"""Locks in ZooKeeper: an ephemeral node for each lock that is held.

A node ends with its session, so all leases of a client last as long as the session timeout,
whatever `ttl` they were acquired with. The token is the id of the transaction
that has created the node (czxid), which rises over the whole ensemble.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from msgworker.clock import clock
from msgworker.coordination.lease import Lease, LockCentre, check_name, check_prefix
from msgworker.errors import ConfigError, LocksUnavailable
from msgworker.logs import logger

log = logger("msgworker.coordination")
EXTRA = 'the driver of ZooKeeper is not installed; run: pip install "msgworker[zookeeper]"'
CONNECT_SECONDS = 10.0
SESSION_SECONDS = 10.0


class _Doubt(NamedTuple):
    """An acquire, or a release, with an unknown result: its node may exist, and would last as long
    as the session."""

    path: str
    claim_id: str | None = None
    token: int | None = None


class ZooKeeperLocks(LockCentre):
    """Locks in ZooKeeper, through your own, started `KazooClient`.

    root: the path of the locks. `lease.ttl` is the session timeout (`timeout` of
    the client, within the limits of the server), instead of the requested ttl.
    While the connection is suspended leases are not live; when it returns within the session, they
    are again. An expired session loses all of them.
    """

    def __init__(self, client: Any, *, root: str = "/msgworker/locks") -> None:
        super().__init__()
        try:
            import kazoo.client
            import kazoo.exceptions
            from kazoo.handlers.threading import KazooTimeoutError
            from kazoo.protocol.states import KeeperState
        except ImportError:
            raise ConfigError(EXTRA) from None
        if not isinstance(client, kazoo.client.KazooClient):
            raise ConfigError(
                f"ZooKeeperLocks takes a kazoo.client.KazooClient, got {client!r:.80}; "
                'from a URL: ZooKeeperLocks.from_url("zookeeper://host:2181")'
            )
        parts = root.split("/")
        if not root.startswith("/") or root.endswith("/") or {".", ".."}.intersection(parts):
            raise ConfigError(f"root must be a path such as /msgworker/locks, got {root!r:.80}")
        self.client = client
        self._root = root
        self._errors = kazoo.exceptions
        self._late: type[Exception] = KazooTimeoutError
        self._connected_state: str = KeeperState.CONNECTED
        self._pid = os.getpid()
        self._opened = False
        self._doubts: list[_Doubt] = []
        self._doubts_lock = threading.Lock()
        client.add_listener(self._on_state)

    @classmethod
    def from_url(cls, url: str) -> ZooKeeperLocks:
        """Locks in the ensemble of zookeeper://host:2181,host:2181/root, on a client of its own
        with a session of 10 s. Raises ConfigError, LocksUnavailable."""
        try:
            import kazoo.client
            from kazoo.handlers.threading import KazooTimeoutError
        except ImportError:
            raise ConfigError(EXTRA) from None
        hosts, _, root = url.removeprefix("zookeeper://").partition("/")
        if not url.startswith("zookeeper://") or not hosts or "@" in hosts:
            raise ConfigError("the url of ZooKeeper looks like zookeeper://host:2181,host:2181")
        try:
            client = kazoo.client.KazooClient(hosts=hosts, timeout=SESSION_SECONDS)
        except ValueError as error:
            raise ConfigError(f"the url of ZooKeeper cannot be read: {error}") from None
        made = cls(client, root=f"/{root.rstrip('/')}" if root.strip("/") else "/msgworker/locks")
        try:
            client.start(timeout=CONNECT_SECONDS)
        except KazooTimeoutError as error:
            client.stop()
            client.close()
            raise LocksUnavailable(f"cannot use ZooKeeper at {hosts}: {error}") from error
        made._opened = True
        return made

    def __repr__(self) -> str:
        return f"ZooKeeperLocks({_hosts(self.client)})"

    def close(self) -> None:
        """End the session, if `from_url` has created it: its leases end with it. The session of
        your own client is not changed."""
        self.client.remove_listener(self._on_state)
        if self._opened and os.getpid() == self._pid:
            self.client.stop()
            self.client.close()

    # ------------------------------------------------------------ what a lock centre does

    @property
    def _session_seconds(self) -> float:
        return float(self.client._session_timeout) / 1000

    @property
    def _connected(self) -> bool:
        """Whether its server is one of the majority: one that only reads shows locks that others
        have by now."""
        return bool(self.client.client_state == self._connected_state)

    def _session(self) -> int:
        """The id of the session; raises LocksUnavailable if it is not connected."""
        if os.getpid() != self._pid:
            raise self._unavailable("the client belongs to the process that this was forked from")
        session = self.client.client_id
        if not self._connected or session is None:
            state = self.client.client_state
            raise self._unavailable(f"the session is {state}; is the client started?")
        return int(session[0])

    def _acquire(self, name: str, owner: str, ttl: float) -> Lease | None:
        begun, session = clock(), self._session()
        self._end_doubts()
        path, claim_id = self._path(name), uuid.uuid4().hex
        data = json.dumps({"owner": owner, "claim": claim_id}).encode()
        try:
            create = self.client.create_async
            _, stat = self._ask(
                create, path, data, ephemeral=True, makepath=True, include_data=True
            )
        except self._errors.NodeExistsError:
            return None
        except LocksUnavailable:
            found = self._after_a_lost_reply(_Doubt(path, claim_id=claim_id))
            if found is None:
                raise
            stat = found

        def connected() -> bool:
            known = self.client.client_id
            return self._connected and known is not None and int(known[0]) == session

        seconds = self._session_seconds
        return Lease(name, owner, int(stat.czxid), seconds, asked_at=begun, says=connected)

    def _after_a_lost_reply(self, doubt: _Doubt) -> Any:
        """The node's stat if it was created; None if it was not, or if that is not known yet."""
        try:
            return self._node_at_last(doubt)
        except LocksUnavailable:
            self._keep(doubt)
            return None

    def _node_at_last(self, doubt: _Doubt) -> Any:
        """Its node, once the client is connected again."""
        until = time.monotonic() + self._session_seconds / 3
        while not self._connected and time.monotonic() < until:
            time.sleep(0.02)
        return self._node_of(doubt)

    def _keep(self, doubt: _Doubt) -> None:
        with self._doubts_lock:
            self._doubts.append(doubt)

    def _node_of(self, doubt: _Doubt) -> Any:
        self._session()
        # It may be connected to another server now, which is behind the one that was asked.
        self._ask(self.client.sync_async, doubt.path)
        try:
            data, stat = self._ask(self.client.get_async, doubt.path)
        except self._errors.NoNodeError:
            return None
        if doubt.token is not None:
            return stat if stat.czxid == doubt.token else None
        return stat if _parsed(data).get("claim") == doubt.claim_id else None

    def _on_state(self, state: str) -> None:
        if state == "CONNECTED" and self._doubts:
            self.client.handler.spawn(self._end_doubts)

    def _end_doubts(self) -> None:
        """Remove nodes of acquires and releases with an unknown result."""
        while self._doubts:
            with self._doubts_lock:
                if not self._doubts:
                    return
                doubt = self._doubts[-1]
            try:
                stat = self._node_of(doubt)
                if stat is not None:
                    self._ask(self.client.delete_async, doubt.path, stat.version)
            except LocksUnavailable:
                return
            except self._errors.NoNodeError:
                pass
            with self._doubts_lock:
                if doubt in self._doubts:
                    self._doubts.remove(doubt)

    def _renew(self, lease: Lease) -> bool:
        session = self._session()
        stat = self._ask(self.client.exists_async, self._path(lease.name))
        return bool(stat and stat.czxid == lease.token and stat.ephemeralOwner == session)

    def _release(self, lease: Lease) -> bool:
        doubt = _Doubt(self._path(lease.name), token=lease.token)
        was_live = lease.live()
        try:
            return self._removed(lease, doubt, was_live)
        except LocksUnavailable:
            self._keep(doubt)  # else it stays when the session is back
            raise

    def _removed(self, lease: Lease, doubt: _Doubt, was_live: bool) -> bool:
        self._session()
        try:
            data, stat = self._ask(self.client.get_async, doubt.path)
            if stat.czxid != lease.token or _parsed(data).get("owner") != lease.owner:
                return False
            self._ask(self.client.delete_async, doubt.path, stat.version)
        except self._errors.NoNodeError:
            return False
        except LocksUnavailable:
            if self._node_at_last(doubt) is not None:
                raise
            return was_live
        return True

    def held(self, prefix: str = "") -> list[Lease]:
        """The held locks; their age is this machine's clock minus ZooKeeper's."""
        check_prefix(prefix)
        self._session()
        try:
            nodes = self._ask(self.client.get_children_async, self._root)
        except self._errors.NoNodeError:
            return []
        names = sorted(name for name in map(unquote, nodes) if name.startswith(prefix))
        found = [self._read(name) for name in names]
        return [lease for lease in found if lease is not None]

    def holder(self, name: str) -> Lease | None:
        check_name(name)
        self._session()
        return self._read(name)

    def _read(self, name: str) -> Lease | None:
        begun = clock()
        try:
            data, stat = self._ask(self.client.get_async, self._path(name))
        except self._errors.NoNodeError:
            return None
        age = max(0.0, time.time() - stat.ctime / 1000)
        owner = str(_parsed(data).get("owner", "?"))
        seconds = self._session_seconds
        return Lease(name, owner, int(stat.czxid), seconds, asked_at=begun, age=age)

    # ------------------------------------------------------------ how

    def _path(self, name: str) -> str:
        return f"{self._root}/{quote(name, safe='').replace('.', '%2E')}"

    def _ask(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """One request, limited to the session timeout; kazoo would wait for the next session."""
        e = self._errors
        try:
            return call(*args, **options).get(block=True, timeout=self._session_seconds)
        except (e.NodeExistsError, e.NoNodeError):
            raise
        except (e.KazooException, self._late) as error:
            raise self._unavailable(f"{type(error).__name__} {error}".strip()) from error

    def _unavailable(self, why: str) -> LocksUnavailable:
        return LocksUnavailable(f"cannot use ZooKeeper at {_hosts(self.client)}: {why}")


def _hosts(client: Any) -> str:
    return ",".join(f"{host}:{port}" for host, port in client.hosts)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
