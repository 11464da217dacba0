"""One cache of compiled statements for all engines of a test process, and one of templates.

SQLAlchemy keeps them per engine, and nearly every test has an engine of its own: compiling the same
statements again for each takes longer than all else that most tests do.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import jinja2
import sqlalchemy as sa
from sqlalchemy.util import LRUCache

from tests.engines import remember

KEPT = 4000  # statements
OF_ONE_DATABASE = {"default_schema_name"}  # what a dialect knows that no statement is made of
PLAIN = (str, int, float, tuple, frozenset, type, type(None))


def share_compiled() -> None:
    """Engines that are made from now on share their compiled statements, as far as their db
    would compile the same."""
    make = sa.create_engine

    @functools.wraps(make)
    def create_engine(*args: Any, **options: Any) -> sa.Engine:
        engine = make(*args, **options)
        engine.update_execution_options(compiled_cache=_shared)
        remember(engine)
        return engine

    sa.create_engine = create_engine
    jinja2.Environment = Environment


class Templates(jinja2.BytecodeCache):
    """Each dashboard has an environment of its own, all of them alike."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Any) -> None:
        bucket.code = self._kept.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Any) -> None:
        self._kept[bucket.key, bucket.checksum] = bucket.code


class Environment(jinja2.Environment):
    """One that shares its templates."""

    _templates = Templates()

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"bytecode_cache": self._templates} | options)


class Shared:
    """The part of a cache that SQLAlchemy uses; its keys begin with the dialect of an engine."""

    def __init__(self) -> None:
        self._kept: LRUCache[Any, Any] = LRUCache(KEPT)
        self._kinds: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def get(self, key: tuple[Any, ...]) -> Any:
        return self._kept.get((self._kind(key[0]), *key[1:]))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._kept[(self._kind(key[0]), *key[1:])] = compiled

    def clear(self) -> None:
        self._kept.clear()

    def _kind(self, dialect: sa.Dialect) -> Any:
        """What a dialect has been told, and what it has found out of its server."""
        kind = self._kinds.get(dialect)
        if kind is None:
            facts = frozenset(
                (name, value)
                for name, value in vars(dialect).copy().items()  # another thread may add to it
                if (isinstance(value, PLAIN) or name.endswith("serializer"))
                and name not in OF_ONE_DATABASE
            )
            kind = self._kinds[dialect] = (type(dialect), facts)
        return kind


_shared = Shared()
