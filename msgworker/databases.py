"""One queue in several databases: the home of each object, and workers for all databases.

Exclusion and order hold within one database. So each object has one home, by its shard, and may
move only while it has no unfinished message: see docs/project/scaling.md.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Pool

from msgworker.app import App
from msgworker.coordination import Partitions, Segments
from msgworker.db.connections import connecting, reaching
from msgworker.db.engine import place_of
from msgworker.declaring import Declaring
from msgworker.errors import ConfigError, DatabaseUnavailable, SchemaError
from msgworker.instance.state import Scope
from msgworker.producing import SendOptions, connection_of
from msgworker.queries import instances
from msgworker.store import slices as store
from msgworker.store.send import shard_of
from msgworker.workers import Workers

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

MAX_NAME = 30


class Databases(Declaring):
    """Several databases that share the work of one queue, with a named App for each.

    apps: name -> App, of different databases or of different tables of one. Their tables must have
    the same number of `shards`. homes: name -> its shards, each shard in one database; by default
    equal ranges in the order of `apps`. The home of an object is the home of its shard. All
    producers must use the same homes, and when a home changes its objects must have no
    unfinished message (see `misplaced`). Set homes explicitly before you add a database, because
    the default ranges would change.

    An App without a label gets NAME.HOST, so that the log shows the database.
    Raises ConfigError.
    """

    def __init__(
        self, apps: Mapping[str, App], *, homes: Mapping[str, Iterable[int]] | None = None
    ) -> None:
        self.apps = _checked(apps)
        self.shards = next(iter(self.apps.values())).table.shards
        self.homes = _homes(list(self.apps), self.shards, homes)
        self._name_of = {shard: name for name, own in self.homes.items() for shard in own}
        self._turn = itertools.cycle(self.apps)
        self._known: WeakKeyDictionary[Pool, set[str]] = WeakKeyDictionary()
        for name, app in self.apps.items():
            app.label = app.label or f"{name}.{socket.gethostname()}"

    def __repr__(self) -> str:
        return f"Databases({', '.join(self.apps)})"

    def create_schema(self) -> dict[str, list[str]]:
        """`App.create_schema` in each; the names of what was created, by database."""
        return {name: app.create_schema() for name, app in self.apps.items()}

    def _declare(self, topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        for app in self.apps.values():
            app._declare(topic, fn, options)

    # ------------------------------------------------------------ producing

    def name_of(self, object_id: Any) -> str:
        """The name of an object's home; for None, no object: each database in turn."""
        if object_id is None:
            return next(self._turn)
        return self._name_of[shard_of(object_id, self.shards)]

    def of(self, object_id: Any) -> App:
        """The App of an object's home: begin your transaction there."""
        return self.apps[self.name_of(object_id)]

    def send(
        self,
        conn: Connection | Session,
        topic: str,
        payload: Any = None,
        *,
        object_id: Any = None,
        **options: Unpack[SendOptions],
    ) -> Any:
        """`App.send` in the object's home, which must be the database of `conn`; a message without
        an object goes to the database of `conn`. options: those of `App.send`. Returns its msg_id
        there.

        A unique key is one of its database: give it with an object that it belongs to, so that all
        who send it send it there. So is the id of a job: give what `App.job` returned. Raises
        ConfigError for a connection of another database, for a unique key without an object, which
        would go to any, and for a mere id of a job; nothing is inserted then.
        """
        self._refuse_anywhere(object_id, options.get("unique_key"))
        job = options.get("job")
        if isinstance(job, int) and len(self.apps) > 1:
            raise ConfigError(
                f"job {job} is an id, which each database gives anew; give the job itself, which "
                f"databases.apps[name].job({job}) returns for the database of that name"
            )
        name = self._place_of(conn, object_id)
        return self.apps[name].send(conn, topic, payload, object_id=object_id, **options)

    def split(self, messages: Iterable[tuple[Any, ...]]) -> list[tuple[App, list[tuple[Any, ...]]]]:
        """(payload, object_id) pairs, and (payload, object_id, unique_key) triples, by the App of
        their home, in order: for `App.send_many` in a transaction per database. Raises ConfigError
        for anything else, and for a unique key without an object."""
        parts: dict[str, list[tuple[Any, ...]]] = {}
        for one in messages:
            if not isinstance(one, tuple | list) or len(one) not in (2, 3):
                raise ConfigError(
                    "split takes (payload, object_id) pairs, and (payload, object_id, unique_key) "
                    f"triples; got {one!r:.80}"
                )
            if len(one) == 3:
                self._refuse_anywhere(one[1], one[2])
            parts.setdefault(self.name_of(one[1]), []).append(tuple(one))
        return [(self.apps[name], parts[name]) for name in self.apps if name in parts]

    def _refuse_anywhere(self, object_id: Any, unique_key: str | None) -> None:
        """Raise ConfigError if a message with a key could go to any of several databases."""
        if unique_key is not None and object_id is None and len(self.apps) > 1:
            raise ConfigError(
                "a unique_key is unique in one database, and a message without an object may go to "
                "any of them; give an object_id, or send with the App of one: databases.apps[name]"
            )

    def _place_of(self, conn: Connection | Session, object_id: Any) -> str:
        """The database of a send; raises ConfigError if `conn` leads to another one."""
        connection = connection_of(conn)
        if object_id is None:
            return self._database_of(connection) or self.name_of(None)
        name = self.name_of(object_id)
        if self._leads_to(name, connection) is False:
            raise ConfigError(
                f"object {object_id!r:.80} belongs to database {name}, but the connection is of "
                f"{self._database_of(connection) or 'none of these databases'}; begin the "
                "transaction there: databases.of(object_id).engine.begin()"
            )
        return name

    def _database_of(self, conn: Connection) -> str | None:
        """The database to which a connection leads; None if that is none of those at hand."""
        for leads in (self._is_known_to_lead, self._leads_to):
            for name in self.apps:
                with suppress(DatabaseUnavailable):  # it is another one that is away
                    if leads(name, conn):
                        return name
        return None

    def _is_known_to_lead(self, name: str, conn: Connection) -> bool:
        app, pool = self.apps[name], conn.engine.pool
        alike = pool is app.engine.pool or conn.engine.url == app.engine.url
        return alike or name in self._known.get(pool, ())

    def _leads_to(self, name: str, conn: Connection) -> bool | None:
        """Whether a connection leads to the table of the App of this name, as the server itself
        says, since a URL may be written in many ways; None = that is unknown. What leads there is
        asked once for each pool."""
        if self._is_known_to_lead(name, conn):
            return True
        app = self.apps[name]
        table, schema = app.table.name, app.table.schema
        there = place_of(conn, table, schema)
        with reaching(app._own), connecting(app._own) as own:
            here = place_of(own, table, schema)
        if there is None or here is None:
            urls = (one.engine.url for one in self.apps.values())
            return False if conn.engine.url in urls else None
        if there == here:
            self._known.setdefault(conn.engine.pool, set()).add(name)
        return there == here

    def misplaced(self) -> dict[str, list[int]]:
        """By database, the shards of which it has unfinished messages although their home is
        elsewhere; {} = all messages are in their homes.

        Call it after `homes` were changed, and before messages are sent to the new homes. It uses
        the column `shard`, which all producers must fill, and reads one entry of the index of
        slices per shard. Raises SchemaError for a table without a column `shard`,
        DatabaseUnavailable.
        """
        found = {name: self._strangers(name, app) for name, app in self.apps.items()}
        return {name: shards for name, shards in found.items() if shards}

    def _strangers(self, name: str, app: App) -> list[int]:
        tables = app.tables
        if not tables.has("shard"):
            raise SchemaError(
                f"table {tables.spec.name} of database {name} has no column shard of numbers, "
                "which says where an object belongs"
            )
        strange = [n for n in range(self.shards) if n not in self.homes[name]]
        with reaching(app._own), connecting(app._own) as conn:
            found = {n for n in strange if store.open_in(conn, tables, "shard", n, objects=True)}
            found |= instances.running_slices(conn, tables, "shard")
        return [shard for shard in strange if shard in found]

    # ------------------------------------------------------------ consuming

    def worker(
        self,
        *,
        threads: int = 4,
        topics: Iterable[str] | None = None,
        scope: Mapping[str, Scope] | None = None,
    ) -> Workers:
        """Workers for all databases in this process, with `threads` handlers in each.

        scope: where each looks, name -> scope; by default everywhere. With locks in its own
        database, each continues during an outage of another; with one lock centre for all,
        `Partitions(group=name)` separates them.
        Raises ConfigError.
        """
        scopes = self._scopes(scope)
        return Workers(
            {
                name: app.worker(threads=threads, topics=topics, scope=scopes.get(name))
                for name, app in self.apps.items()
            }
        )

    def _scopes(self, scope: Mapping[str, Scope] | None) -> Mapping[str, Scope]:
        if scope is None:
            return {}
        if not isinstance(scope, Mapping) or set(scope) != set(self.apps):
            raise ConfigError(
                f"scope must name one for each database, {', '.join(self.apps)}; got {scope!r:.120}"
            )
        seen: dict[tuple[str, str], str] = {}
        for name, one in scope.items():
            for lock in _locks_of(one, self.apps[name]):
                other = seen.setdefault(lock, name)
                if other != name:
                    raise ConfigError(
                        f"databases {other} and {name} would share the locks {lock[1]!r} at "
                        f"{lock[0]}, so no worker would handle all of either; give each its own: "
                        f"Partitions(group={name!r}), or other names of segments"
                    )
        return scope


def _locks_of(scope: Scope, app: App) -> list[tuple[str, str]]:
    """Where a scope keeps its locks, and how they are named."""
    if isinstance(scope, Partitions):
        return [(repr(scope.locks), scope.prefix(app.table))]
    if isinstance(scope, Segments):
        return [(repr(scope.locks), name) for name in scope.segments]
    return []


def _checked(apps: Mapping[str, App]) -> dict[str, App]:
    if not isinstance(apps, Mapping) or not apps:
        raise ConfigError(
            f'Databases takes an App by each name, {{"north": app}}; got {apps!r:.80}'
        )
    for name, app in apps.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ConfigError(
                f"the name of a database has letters, digits, _ and - only; got {name!r:.80}"
            )
        if len(name) > MAX_NAME:
            raise ConfigError(f"the name of a database has at most {MAX_NAME} characters: {name!r}")
        if not isinstance(app, App):
            raise ConfigError(f"database {name} must be an App, got {app!r:.80}")
    counts = {app.table.shards for app in apps.values()}
    if len(counts) > 1:
        raise ConfigError(
            "all tables must have the same number of shards, MessageTable(shards=...), which "
            f"decides the homes; got {sorted(counts)}"
        )
    return dict(apps)


def _homes(
    names: Sequence[str], shards: int, given: Mapping[str, Iterable[int]] | None
) -> dict[str, tuple[int, ...]]:
    if given is None:
        if shards < len(names):
            raise ConfigError(
                f"{len(names)} databases need as many shards; the tables have {shards}, see "
                "MessageTable(shards=...)"
            )
        ends = [shards * place // len(names) for place in range(len(names) + 1)]
        return {name: tuple(range(ends[i], ends[i + 1])) for i, name in enumerate(names)}
    if not isinstance(given, Mapping) or set(given) != set(names):
        raise ConfigError(f"homes must name the shards of {', '.join(names)}; got {given!r:.120}")
    try:
        homes = {name: tuple(sorted(given[name])) for name in names}
    except TypeError:
        raise ConfigError(f"homes must be lists of shards by name, got {given!r:.120}") from None
    named = sorted(shard for own in homes.values() for shard in own)
    if named != list(range(shards)):
        raise ConfigError(
            f"homes must name each shard from 0 to {shards - 1} once, in one database; got "
            f"{named!r:.200}"
        )
    return homes
