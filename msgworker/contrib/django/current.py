"""The Apps of this process, one for each database, with the handlers of the project.

Made when they are asked for, from the settings as they are then: during tests that is the
test database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from django.db import connections

from msgworker.app import App
from msgworker.contrib.django.around import around
from msgworker.contrib.django.borrowed import DjangoConnection, theirs
from msgworker.contrib.django.database import url_of
from msgworker.contrib.django.options import options
from msgworker.declaring import Declaring
from msgworker.processlock import ProcessLock
from msgworker.producing import AllSendOptions, ManyOptions

_lock = ProcessLock()
_handlers: list[tuple[str | None, Callable[..., Any], dict[str, Any]]] = []
_apps: dict[str, App] = {}


class DjangoApp(App):
    """An App whose handlers may use Django's ORM; see `around`."""

    def _declare(self, topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        inside = bool(options.get("transactional"))
        super()._declare(topic, around(fn, transactional=inside), options)


def app(alias: str | None = None) -> App:
    """The App on a database of DATABASES (default: MSGWORKER["alias"], else "default"), with all
    handlers of the project; the same one at every call. Raises ConfigError."""
    asked = options()
    alias = asked.alias if alias is None else alias
    url = url_of(alias)
    key = url.render_as_string(hide_password=False)
    with _lock:
        found = _apps.get(key)
        if found is None:
            found = DjangoApp(url, table=asked.table, **asked.app)
            for topic, fn, more in _handlers:
                found._declare(topic, fn, more)
            _apps[key] = found
        return found


class _Project(Declaring):
    """The handlers of the project, for the Apps that there are and those that are made later."""

    def _declare(self, topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        with _lock:
            _handlers.append((topic, fn, options))
            for made in _apps.values():
                made._declare(topic, fn, options)


handler = _Project().handler
"""Register a function as the handler of a topic, in a module `messages` or `handlers` of an
installed app; options as in `App.handler`.

It may use Django's ORM. In a transactional one that would be another transaction than
`ctx.connection`'s: writes through the ORM are refused there with HandlerMisuse.
"""


def send(
    topic: str, payload: Any = None, *, using: str | None = None, **how: Unpack[AllSendOptions]
) -> Any:
    """Insert one message on Django's own connection; return its msg_id (None on Oracle).

    Inside `transaction.atomic` it commits or rolls back with the rest; outside, Django's
    autocommit commits it at once. using: an alias of DATABASES. how: as in `App.send` (object_id,
    delay, at, priority, ...). Raises what `App.send` raises, and Django's database errors.
    """
    there = app(using)
    with theirs():
        return there.send(_connection(there, using), topic, payload, **how)


def send_many(
    topic: str,
    messages: Iterable[tuple[Any, Any]],
    *,
    using: str | None = None,
    **how: Unpack[ManyOptions],
) -> int:
    """Insert (payload, object_id) pairs on Django's own connection, as `send`; return how many."""
    there = app(using)
    with theirs():
        return there.send_many(_connection(there, using), topic, messages, **how)


def _connection(there: App, using: str | None) -> Any:
    alias = options().alias if using is None else using
    _ = there.tables  # read on a connection of its own, before anything is compiled
    connections[alias].ensure_connection()
    return DjangoConnection(alias, there.engine)
