"""All settings with their limits and defaults.

One file, because it is a table: a row for each setting, in the order of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from msgworker.config import values
from msgworker.errors import ConfigError
from msgworker.payload import is_text

MAX_THREADS = 1024
MAX_PROCESSES = 256
PREFIX = "MSGWORKER_"
MAX_TRIES = 1000
BACKOFF_SECONDS = 20.0
HISTORY_SECONDS = 7 * 86_400.0

Kind = Literal["text", "seconds", "whole", "flag", "choice", "texts", "names", "where", "layout"]
Group = Literal["database", "table", "app", "work", "locks", "log", "web"]


def _declared(
    default: Any, kind: Kind, about: str, least: float = 0.0, most: float = values.YEAR_SECONDS
) -> Any:
    """A field of `Settings`: what its row in SETTINGS says of it."""
    return field(default=default, metadata={"row": (kind, default, about, least, most)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the instances of an App: its keywords.

    Each is declared here alone: its default, its limits, its row in the documentation, and the text
    that editors show. `make keywords` writes the keywords of `App` from it (settings.py).
    """

    lease_seconds: float = _declared(
        30.0, "seconds", "how long an instance counts as alive without a heartbeat", 0.3, 86_400
    )
    """How long an instance counts as alive without a heartbeat (one per third of it)."""

    poll_seconds: float = _declared(
        1.0, "seconds", "the longest pause between two looks at an idle table", 0.001, 3_600
    )
    """The longest pause between looks at an idle table. While messages are in flight it is 0.25 s
    at most; a message sent by this process or with a notification is looked for at once."""

    run_limit: int = _declared(
        20, "whole", "messages of an object read ahead; more if few are claimed", 0, 10_000
    )
    """How many messages of an object are read ahead behind its head while `lanes_limit` objects are
    claimed; 0 = none. Fewer objects have longer runs, if those are handled to their end within a
    second: all objects together at most run_limit * lanes_limit messages."""

    lanes_limit: int = _declared(
        1000, "whole", "how many objects an instance claims at once, at most", 1, 100_000
    )
    """How many objects an instance claims at once, at most, beside those whose outcome is being
    written."""

    payload_budget: int = _declared(
        64 * 1024 * 1024,
        "whole",
        "bytes of payloads over 16 KB that handlers hold at once",
        1,
        2**40,
    )
    """Bytes of long payloads (of more than 16 KB) that handlers of an instance hold at once; one
    that is longer is held alone. Shorter ones are read ahead."""

    notify: bool = _declared(
        False, "flag", "on PostgreSQL, wake up other processes when a message is sent"
    )
    """On PostgreSQL, wake up workers of other processes when a message is sent."""

    foreign_stale_after: float | None = _declared(
        None, "seconds", "recover messages of a foreign consumer after this time; unset: never", 1
    )
    """Seconds after which a message that a foreign consumer has flagged is recovered; None = never.
    The risk: a foreign consumer that is only slow is then not excluded."""

    backoff_seconds: float = _declared(
        BACKOFF_SECONDS, "seconds", "the pause after a first failed try; then 5 times it", 0, 480
    )
    """The pause after a first failed try; each further one is five times as long, plus up to a
    quarter at random, so that retries spread, at most 600 s. 0 = none. A handler's own `wait` has
    precedence."""

    history_seconds: float = _declared(
        HISTORY_SECONDS, "seconds", "how long the history for charts is kept; 0: none"
    )
    """How long the history for charts is kept (a row for each minute with work, topic and
    instance); 0 = this instance writes none."""

    log_every_failure: bool = _declared(
        False, "flag", "log every failed try, also in a storm of equal ones"
    )
    """Log every failed try; else a storm of equal ones is summed up each minute."""

    tracing: bool = _declared(False, "flag", "spans of OpenTelemetry for what is sent and handled")
    """Spans of OpenTelemetry for what is sent and handled; needs the extra `otel`, see
    docs/operate/tracing.md."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value, (kind, default, _, least, most) = getattr(self, one.name), one.metadata["row"]
            if kind == "flag":
                if not isinstance(value, bool):
                    raise ConfigError(f"{one.name} must be True or False, got {value!r}")
            elif value is not None or default is not None:
                check = values.whole if kind == "whole" else values.number
                check(one.name, value, least, most)

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Settings:
        """Those of the keywords of an App; raises ConfigError."""
        if unknown := sorted(set(keywords) - set(cls.names())):
            raise ConfigError(
                f"unknown setting {unknown[0]!r}; {values.nearest(unknown[0], cls.names())}"
            )
        return cls(**keywords)

    @property
    def heartbeat_seconds(self) -> float:
        return self.lease_seconds / 3

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name in files, its kind and limits, and its default.

    kind: "texts" is a list of texts, "names" a table of role = column name (false = no column),
    "where" one of column = value, or a list of values.
    group: the part that reads it: the engine, MessageTable, App, `run` and `drain`, the lock
    centre, the log, or `msgworker web`.
    """

    name: str
    group: Group
    kind: Kind
    default: Any
    about: str
    least: float = 0.0
    most: float = values.YEAR_SECONDS
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def read(self, value: Any, place: str) -> Any:
        """The value, checked; `place` names it in errors: --threads, MSGWORKER_THREADS, ..."""
        texts = value if isinstance(value, list | tuple) else [value]
        odd = any(isinstance(one, str) and not is_text(one) for one in texts)
        if odd and self.name not in _OF_FILES:
            raise ConfigError(f"{place} must be a text in UTF-8")
        if self.kind == "seconds":
            return values.seconds(place, value, self.least, self.most)
        if self.kind == "whole":
            return values.whole(place, values.as_whole(value), self.least, self.most)
        if self.kind in _READERS:
            return _READERS[self.kind](value, place)
        if not isinstance(value, str) or not value.strip():
            # An odd url is not repeated: it may hold a password.
            got = "" if self.name in ("url", "locks") else f", got {value!r:.80}"
            raise ConfigError(f"{place} must be a text{', but is empty' if value == '' else got}")
        if self.kind == "choice" and value not in self.choices:
            choices = ", ".join(self.choices)
            raise ConfigError(f"{place} must be one of {choices}; got {value!r:.80}")
        return value


_OF_FILES = ("url", "metrics_file", "web_token_file")
"""Names of files may have any bytes; a URL of a server is checked by the engine."""
_READERS: dict[str, Callable[[Any, str], Any]] = {
    "flag": values.as_flag,
    "texts": values.as_texts,
    "names": values.as_names,
    "where": values.as_where,
    "layout": values.as_layout,
}


def _row(
    group: Group,
    kind: Kind | tuple[str, ...],
    default: Any,
    about: str,
    least: float = 0.0,
    most: float = values.YEAR_SECONDS,
) -> Callable[[str], Setting]:
    """A setting of any name. kind: or the choices."""
    if isinstance(kind, tuple):
        return lambda name: Setting(name, group, "choice", default, about, choices=kind)
    return lambda name: Setting(name, group, kind, default, about, least, most)


_ROWS = {
    "url": _row("database", "text", None, "the database, a SQLAlchemy URL"),
    "table": _row("table", "text", "msgworker_message", "the message table, schema.table allowed"),
    "columns": _row(
        "table", "names", {}, "column names of an existing table, role = name, false = no column"
    ),
    "where": _row(
        "table", "where", {}, "which rows are messages, column = value or a list of values"
    ),
    "on_dead": _row(
        "table", ("continue", "block"), "continue", "what an object does after a dead message"
    ),
    "max_tries": _row("table", "whole", 3, "how often a message is tried", 1, 1000),
    "later_limit": _row(
        "table", "whole", 100, "how often a message may be postponed by RetryLater", 0, 1_000_000
    ),
    "visibility_delay_seconds": _row(
        "table", "seconds", 0.0, "messages younger than this are not claimed", 0, 86_400
    ),
    "max_payload": _row(
        "table",
        "whole",
        16_000_000,
        "the longest payload that is read, in characters (bytes on MariaDB and MySQL)",
        1,
        2**31 - 1,
    ),
    "shards": _row(
        "table",
        "whole",
        64,
        "how many numbers send writes into the column shard; fixed for a table's life",
        1,
        32_767,
    ),
    "time_zone": _row("table", "text", "UTC", "the zone of local times in columns without one"),
    **{one.name: _row("app", *one.metadata["row"]) for one in fields(Settings)},
    "threads": _row(
        "work", "whole", 4, "how many handlers run at once in a process", 1, MAX_THREADS
    ),
    "processes": _row("work", "whole", 1, "how many processes to start", 1, MAX_PROCESSES),
    "topics": _row("work", "texts", (), "only these topics, of those that have a handler"),
    "time_limit": _row("work", "seconds", None, "stop in order after this time; unset: no limit"),
    "linger": _row("work", "seconds", 5.0, "drain waits this long for messages that become due"),
    "retry_linger": _row(
        "work",
        "seconds",
        300.0,
        "drain waits this long for the next try of failed ones; 0 if linger is 0",
    ),
    "outage_limit": _row(
        "work", "seconds", 60.0, "drain gives up when the database has been unreachable for so long"
    ),
    "grace": _row(
        "work", "seconds", 30.0, "how long running handlers may continue at a stop", 0, 86_400
    ),
    "metrics_port": _row(
        "work", "whole", None, "serve metrics for Prometheus at this port; unset: none", 1, 65_535
    ),
    "metrics_file": _row(
        "work", "text", None, "drain writes its metrics to this file at its end; unset: none"
    ),
    "metrics_host": _row("work", "text", "127.0.0.1", "the address at which metrics are served"),
    "locks": _row(
        "locks",
        "text",
        "database",
        "where locks are kept: database, or the URL of Redis or ZooKeeper",
    ),
    "scope": _row(
        "work",
        "text",
        "everywhere",
        "where to look: everywhere, instance:TYPE, partitions:SHARDS[:GROUP], segments or job:ID",
    ),
    "segments": _row(
        "work", "layout", {}, "of the scope segments: the name of each lock and its shards"
    ),
    "on_outage": _row(
        "work",
        ("stop", "unscoped"),
        "stop",
        "of the scope segments: what to do while the locks cannot be reached",
    ),
    "log_level": _row(
        "log",
        ("debug", "info", "warning", "error"),
        None,
        "unset: info for run and drain, warning for all others",
    ),
    "log_format": _row("log", ("text", "json"), "text", "how log lines on stderr look"),
    "web_host": _row("web", "text", "127.0.0.1", "the address that the dashboard listens on"),
    "web_port": _row("web", "whole", 8080, "the port of the dashboard; 0 = a free one", 0, 65_535),
    "web_token_file": _row(
        "web", "text", None, "a file of mode 0600 with a TOKEN, or lines of NAME ROLE TOKEN"
    ),
    "web_allow_actions": _row(
        "web", "flag", False, "let operators and admins act; else all only look"
    ),
    "web_role": _row(
        "web",
        ("viewer", "operator", "admin"),
        "admin",
        "the role of those who have none of their own",
    ),
    "web_root_path": _row(
        "web", "text", None, "the path below which a proxy serves the dashboard, such as /queue"
    ),
    "web_allowed_hosts": _row(
        "web", "texts", (), "names, with their port, that browsers know the dashboard by"
    ),
    "web_trusted_proxies": _row(
        "web",
        "texts",
        (),
        "addresses of proxies whose X-Forwarded-Host, -Proto and -For are believed",
    ),
    "web_trusted_proxy_header": _row(
        "web", "text", None, "the header in which a trusted proxy names the user it has let in"
    ),
    "web_role_header": _row(
        "web",
        "text",
        None,
        "the header in which it says the role of that user; without it --role is for all",
    ),
    "web_redact": _row(
        "web", "texts", (), "paths of payloads that are hidden, such as customer.card or **.iban"
    ),
    "web_label": _row("web", "text", None, "shown beside the name on every page, such as PROD"),
}
SETTINGS = {name: row(name) for name, row in _ROWS.items()}
"""All settings, in the order of the documentation."""


def flag_of(name: str) -> str:
    """The command line's flag of a setting; those of `msgworker web` have no prefix there."""
    if name in _SINGULAR:
        return _SINGULAR[name]
    return "--" + name.removeprefix("web_").replace("_", "-")


_SINGULAR = {
    "topics": "--topic",
    "web_allowed_hosts": "--allowed-host",
    "web_trusted_proxies": "--trusted-proxy",
}
