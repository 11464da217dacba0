"""The setting MSGWORKER of a Django project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from msgworker.errors import ConfigError
from msgworker.table import MessageTable

MODULES = ("messages", "handlers")


@dataclass(frozen=True, slots=True)
class Options:
    """alias: of DATABASES. modules: that are imported of every installed app. app: keywords of
    App."""

    alias: str
    modules: tuple[str, ...]
    table: MessageTable | None
    app: dict[str, Any]


def options() -> Options:
    """MSGWORKER, checked; raises ConfigError. Unknown keys are answered by App."""
    found = getattr(settings, "MSGWORKER", {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"the setting MSGWORKER must be a dict, got {found!r:.80}")
    given = dict(found)
    alias, modules = given.pop("alias", "default"), given.pop("modules", MODULES)
    if not isinstance(alias, str):
        raise ConfigError(f"MSGWORKER['alias'] must be an alias of DATABASES, got {alias!r:.80}")
    if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
        raise ConfigError(
            f"MSGWORKER['modules'] must be a list of names of modules, got {modules!r:.80}"
        )
    return Options(alias, tuple(modules), _table(given.pop("table", None)), given)


def _table(given: Any) -> MessageTable | None:
    if given is None or isinstance(given, MessageTable):
        return given
    if isinstance(given, str):
        return MessageTable(given)
    if isinstance(given, Mapping):
        try:
            return MessageTable(**given)
        except TypeError as error:
            raise ConfigError(f"MSGWORKER['table']: {error}") from None
    raise ConfigError(
        f"MSGWORKER['table'] must be a name, a dict or a MessageTable, got {given!r:.80}"
    )
