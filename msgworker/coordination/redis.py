"""Locks in Redis: fast, but lost when Redis loses its data.

A fail-over, or a restart without persistence, loses held locks: for a while two holders
may have the same lock. The token still rises: it is never lower than the milliseconds
since 1970 of Redis' own clock, even if the last token was lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgworker.clock import clock
from msgworker.coordination.lease import Lease, LockCentre, check_name, check_prefix, extended
from msgworker.errors import ConfigError, LocksUnavailable

T = TypeVar("T")
EXTRA = 'the driver of Redis is not installed; run: pip install "msgworker[redis]"'
ANSWER_SECONDS = 5.0
FREED_MS = 60_000
"""How long a release can be sent again after a lost reply."""
TOKEN_MS = 86_400_000
"""How long the token of a lock is kept, beside its ttl, from when it was given: those of members,
each with a name of its own, would never go. A later token is higher by the clock of Redis."""

# The value of a lock: token:claim id:held since:owner. Redis runs a script atomically; a client
# that repeats one after a lost reply finds its own claim id.
_PARTS = "^(%d+):([^:]*):(%d+):(.*)$"
_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
ACQUIRE = f"""
-- KEYS lock, token, held; ARGV name, owner, claim id, ttl, for how long the token is kept
local held = redis.call('GET', KEYS[1])
if held then
  local token, claim = string.match(held, '{_PARTS}')
  return claim == ARGV[3] and token or false
end
{_NOW}
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local token = string.format('%.0f', math.max(last + 1, now))
local value = token .. ':' .. ARGV[3] .. ':' .. string.format('%.0f', now) .. ':' .. ARGV[2]
redis.call('SET', KEYS[2], token, 'PX', ARGV[4] + ARGV[5])
redis.call('SET', KEYS[1], value, 'PX', ARGV[4])
redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[1])
return token
"""
RENEW = f"""
-- KEYS held, locks; ARGV of each lock: name, owner, token, ttl; 1 or 0 for each
{_NOW}
local renewed = {{}}
for i = 1, #KEYS - 1 do
  local name, owner, token, ttl = unpack(ARGV, i * 4 - 3, i * 4)
  local held_token, _, _, holder = string.match(redis.call('GET', KEYS[i + 1]) or '', '{_PARTS}')
  renewed[i] = 0
  if held_token == token and holder == owner then
    redis.call('PEXPIRE', KEYS[i + 1], ttl)
    redis.call('ZADD', KEYS[1], now + ttl, name)
    renewed[i] = 1
  end
end
return renewed
"""
RELEASE = f"""
-- KEYS lock, held, freed; ARGV name, owner, token, which release, for how long that is known
if redis.call('GET', KEYS[3]) == ARGV[4] then return 1 end
local token, _, _, owner = string.match(redis.call('GET', KEYS[1]) or '', '{_PARTS}')
if token ~= ARGV[3] or owner ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[5])
return 1
"""
HELD = f"""
-- KEYS held; what has expired is forgotten
{_NOW}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""
LOOK = f"""
-- KEYS locks; what each holds, and for how many ms it has and will have been held
{_NOW}
local found = {{}}
for i, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  if held then
    local _, _, since = string.match(held, '{_PARTS}')
    found[i] = {{held, math.max(0, now - tonumber(since)), redis.call('PTTL', key)}}
  else
    found[i] = {{}}
  end
end
return found
"""
AT_ONCE = 500
"""How many locks one script reads or renews; other clients of Redis wait meanwhile."""


class RedisLocks(LockCentre):
    """Locks in Redis 5 or later, by one Lua script each.

    client: your own `redis.Redis` (or RedisCluster), with a `socket_timeout`: without one a call
    may wait indefinitely for a server that does not answer. prefix: of its keys; all of
    them are in one slot of a cluster.
    """

    def __init__(self, client: Any, *, prefix: str = "msgworker") -> None:
        super().__init__()
        try:
            import redis
        except ImportError:
            raise ConfigError(EXTRA) from None
        if not isinstance(client, redis.Redis | redis.RedisCluster):
            raise ConfigError(
                f"RedisLocks takes a redis.Redis (not an asyncio one), got {client!r:.80}; "
                'from a URL: RedisLocks.from_url("redis://host:6379/0")'
            )
        if any(ch in "{}" for ch in prefix) or not prefix:
            raise ConfigError(f"prefix must be a text without braces, got {prefix!r:.80}")
        self.client = client
        self._error = (redis.RedisError, redis.exceptions.RedisClusterException)
        self._lost = (redis.ConnectionError, redis.TimeoutError)
        self._prefix = f"{{{prefix}}}"
        self._scripts: dict[str, Any] = {
            text: client.register_script(text) for text in (ACQUIRE, RENEW, RELEASE, HELD, LOOK)
        }
        self._opened = False

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "msgworker") -> RedisLocks:
        """Locks in the Redis of a URL: redis://, rediss:// or unix://. The timeout of an answer is
        5 s. Raises ConfigError."""
        try:
            import redis
        except ImportError:
            raise ConfigError(EXTRA) from None
        limits = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": ANSWER_SECONDS}
        try:
            client = redis.Redis.from_url(url, **limits)
            pool = client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # which connects to nothing
        except (TypeError, ValueError, redis.RedisError):  # with a part of the password in it
            raise ConfigError(
                "the url of Redis cannot be read; it looks like redis://user:password@host:6379/0, "
                "with a password that is percent-encoded, and with options that redis-py knows"
            ) from None
        made = cls(client, prefix=prefix)
        made._opened = True
        return made

    def __repr__(self) -> str:
        return f"RedisLocks({_place(self.client)})"

    def close(self) -> None:
        """Close the client, if `from_url` has created it. Leases are not released."""
        if self._opened:
            self.client.close()

    # ------------------------------------------------------------ what a lock centre does

    def _acquire(self, name: str, owner: str, ttl: float) -> Lease | None:
        begun = clock()
        keys = [self._key("lock", name), self._key("token", name), self._key("held")]
        token = self._run(ACQUIRE, keys, [name, owner, uuid.uuid4().hex, _ms(ttl), TOKEN_MS])
        return None if token is None else Lease(name, owner, int(token), ttl, asked_at=begun)

    def _renew(self, lease: Lease) -> bool:
        return self._renewed([lease])[0]

    def renew_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Renew many leases, some hundred in a round trip; those that are still held."""
        begun, kept = clock(), []
        for part in _parts_of(leases):
            answered = zip(part, self._renewed(part), strict=True)
            kept += [one for one, renewed in answered if extended(one, renewed, begun)]
        return kept

    def _renewed(self, leases: Sequence[Lease]) -> list[bool]:
        keys = [self._key("lock", one.name) for one in leases]
        args = [x for one in leases for x in (one.name, one.owner, one.token, _ms(one.ttl))]
        return [renewed == 1 for renewed in self._run(RENEW, [self._key("held"), *keys], args)]

    def _release(self, lease: Lease) -> bool:
        name = lease.name
        keys = [self._key("lock", name), self._key("held"), self._key("freed", name)]
        args = [name, lease.owner, lease.token, uuid.uuid4().hex, FREED_MS]
        return bool(self._run(RELEASE, keys, args))

    def held(self, prefix: str = "") -> list[Lease]:
        check_prefix(prefix)
        names = self._run(HELD, [self._key("held")], [])
        chosen = sorted(name for name in map(_text, names) if name.startswith(prefix))
        return [lease for part in _parts_of(chosen) for lease in self._look(part)]

    def holder(self, name: str) -> Lease | None:
        check_name(name)
        return next(iter(self._look([name])), None)

    def _look(self, names: Sequence[str]) -> list[Lease]:
        begun, found = clock(), []
        answers = self._run(LOOK, [self._key("lock", name) for name in names], [])
        for name, answer in zip(names, answers, strict=True):
            if answer and answer[2] > 0:
                token, _, _, owner = _text(answer[0]).split(":", 3)
                age, left = answer[1] / 1000, answer[2] / 1000
                lease = Lease(name, owner, int(token), left, asked_at=begun, age=age)
                found.append(lease)
        return found

    # ------------------------------------------------------------ how

    def _key(self, kind: str, name: str = "") -> str:
        return f"{self._prefix}:{kind}:{name}" if name else f"{self._prefix}:{kind}"

    def _run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        """Run a script; repeat it once after a lost reply, since scripts are idempotent."""
        with self._reaching():
            try:
                return self._scripts[script](keys=keys, args=args)
            except self._lost:
                return self._scripts[script](keys=keys, args=args)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            text = f"{type(error).__name__}: {error}"
            raise LocksUnavailable(f"cannot use Redis at {_place(self.client)}: {text}") from error


def _parts_of(some: Sequence[T]) -> Iterator[Sequence[T]]:
    return (some[i : i + AT_ONCE] for i in range(0, len(some), AT_ONCE))


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _place(client: Any) -> str:
    """Where a client connects to, without its password."""
    nodes = getattr(getattr(client, "nodes_manager", None), "startup_nodes", None)
    if nodes:
        return ",".join(sorted(nodes))
    pool = getattr(client, "connection_pool", None)
    setting: Callable[..., Any] = getattr(pool, "connection_kwargs", {}).get
    if setting("path"):
        return str(setting("path"))
    return f"{setting('host', '?')}:{setting('port', '?')}/{setting('db', 0)}"
