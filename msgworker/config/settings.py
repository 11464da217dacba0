"""All settings with their limits and defaults.

One file, because it is a table: a row for each setting, in the order of the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from msgworker.config.values import (
    YEAR_SECONDS,
    as_flag,
    as_layout,
    as_names,
    as_texts,
    as_whole,
    number,
    seconds,
    whole,
)
from msgworker.errors import ConfigError

MAX_THREADS = 1024
MAX_PROCESSES = 256
PREFIX = "MSGWORKER_"
MAX_TRIES = 1000
BACKOFF_SECONDS = 20.0
HISTORY_SECONDS = 7 * 86_400.0

Kind = Literal["text", "seconds", "whole", "flag", "choice", "texts", "names", "layout"]
Group = Literal["database", "table", "app", "work", "locks", "log", "web"]


def _declared(
    default: Any, kind: Kind, about: str, *, least: float = 0.0, most: float = YEAR_SECONDS
) -> Any:
    """A field of `Settings`: what its row in SETTINGS says of it."""
    row = {"kind": kind, "about": about, "least": least, "most": most}
    return field(default=default, metadata=row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the instances of an App: its keywords.

    Each is declared here alone: its default, its limits, its row in the documentation, and the text
    that editors show. `make keywords` writes the keywords of `App` from it (settings.py).
    """

    lease_seconds: float = _declared(
        30.0,
        "seconds",
        "how long an instance counts as alive without a heartbeat",
        least=0.3,
        most=86_400,
    )
    """How long an instance counts as alive without a heartbeat (one per third of it)."""

    poll_seconds: float = _declared(
        1.0,
        "seconds",
        "the longest pause between two looks at an idle table",
        least=0.001,
        most=3_600,
    )
    """The longest pause between looks at an idle table. While messages are in flight it is 0.25 s
    at most; a message sent by this process or with a notification is looked for at once."""

    run_limit: int = _declared(
        20, "whole", "messages of an object read ahead; more if few are claimed", most=10_000
    )
    """How many messages of an object are read ahead behind its head while `lanes_limit` objects are
    claimed; 0 = none. Fewer objects have longer runs, if those are handled to their end within a
    second: all objects together at most run_limit * lanes_limit messages."""

    lanes_limit: int = _declared(
        1000, "whole", "how many objects an instance claims at once, at most", least=1, most=100_000
    )
    """How many objects an instance claims at once, at most, beside those whose outcome is being
    written."""

    payload_budget: int = _declared(
        64 * 1024 * 1024,
        "whole",
        "bytes of payloads over 16 KB that handlers hold at once",
        least=1,
        most=2**40,
    )
    """Bytes of long payloads (of more than 16 KB) that handlers of an instance hold at once; one
    that is longer is held alone. Shorter ones are read ahead."""

    notify: bool = _declared(
        False, "flag", "on PostgreSQL, wake up other processes when a message is sent"
    )
    """On PostgreSQL, wake up workers of other processes when a message is sent."""

    foreign_stale_after: float | None = _declared(
        None,
        "seconds",
        "recover messages of a foreign consumer after this time; unset: never",
        least=1,
    )
    """Seconds after which a message that a foreign consumer has flagged is recovered; None = never.
    The risk: a foreign consumer that is only slow is then not excluded."""

    backoff_seconds: float = _declared(
        BACKOFF_SECONDS, "seconds", "the pause after a first failed try; then 5 times it", most=480
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
            value, row = getattr(self, one.name), one.metadata
            if row["kind"] == "flag":
                if not isinstance(value, bool):
                    raise ConfigError(f"{one.name} must be True or False, got {value!r}")
            elif value is not None or one.default is not None:
                check = whole if row["kind"] == "whole" else number
                check(one.name, value, row["least"], row["most"])

    @property
    def heartbeat_seconds(self) -> float:
        return self.lease_seconds / 3

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its name in files, its kind and limits, and its default.

    kind: "texts" is a list of texts, "names" a table of role = column name (false = no column).
    group: the part that reads it: the engine, MessageTable, App, `run` and `drain`, the lock
    centre, the log, or `msgworker web`.
    """

    name: str
    kind: Kind
    group: Group
    about: str
    default: Any = None
    least: float = 0.0
    most: float = YEAR_SECONDS
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()

    def read(self, value: Any, place: str) -> Any:
        """The value, checked; `place` names it in errors: --threads, MSGWORKER_THREADS, ..."""
        if self.kind == "seconds":
            return seconds(place, value, self.least, self.most)
        if self.kind == "whole":
            return whole(place, as_whole(value), self.least, self.most)
        if self.kind == "flag":
            return as_flag(value, place)
        if self.kind == "texts":
            return as_texts(value, place)
        if self.kind == "names":
            return as_names(value, place)
        if self.kind == "layout":
            return as_layout(value, place)
        if not isinstance(value, str) or not value.strip():
            # An empty or odd url is not repeated: it may hold a password.
            got = "" if self.name in ("url", "locks") else f", got {value!r:.80}"
            raise ConfigError(f"{place} must be a text{got}")
        if self.kind == "choice" and value not in self.choices:
            choices = ", ".join(self.choices)
            raise ConfigError(f"{place} must be one of {choices}; got {value!r:.80}")
        return value


SETTINGS: dict[str, Setting] = {
    s.name: s
    for s in (
        Setting(name="url", kind="text", group="database", about="the database, a SQLAlchemy URL"),
        Setting(
            name="table",
            kind="text",
            group="table",
            about="the message table, schema.table allowed",
            default="msgworker_message",
        ),
        Setting(
            name="columns",
            kind="names",
            group="table",
            about="column names of an existing table, role = name, false = no column",
            default={},
        ),
        Setting(
            name="on_dead",
            kind="choice",
            group="table",
            about="what an object does after a dead message",
            default="continue",
            choices=("continue", "block"),
        ),
        Setting(
            name="max_tries",
            kind="whole",
            group="table",
            about="how often a message is tried",
            default=3,
            least=1,
            most=1000,
        ),
        Setting(
            name="later_limit",
            kind="whole",
            group="table",
            about="how often a message may be postponed by RetryLater",
            default=100,
            most=1_000_000,
        ),
        Setting(
            name="visibility_delay_seconds",
            kind="seconds",
            group="table",
            about="messages younger than this are not claimed",
            default=0.0,
            most=86_400,
        ),
        Setting(
            name="max_payload",
            kind="whole",
            group="table",
            about="the longest payload that is read, in characters (bytes on MariaDB and MySQL)",
            default=16_000_000,
            least=1,
            most=2**31 - 1,
        ),
        Setting(
            name="shards",
            kind="whole",
            group="table",
            about="how many numbers send writes into the column shard; fixed for a table's life",
            default=64,
            least=1,
            most=32_767,
        ),
        Setting(
            name="time_zone",
            kind="text",
            group="table",
            about="the zone of local times in columns without one",
            default="UTC",
        ),
        *(
            Setting(name=one.name, group="app", default=one.default, **one.metadata)
            for one in fields(Settings)
        ),
        Setting(
            name="threads",
            kind="whole",
            group="work",
            about="how many handlers run at once in a process",
            default=4,
            least=1,
            most=MAX_THREADS,
        ),
        Setting(
            name="processes",
            kind="whole",
            group="work",
            about="how many processes run and drain start",
            default=1,
            least=1,
            most=MAX_PROCESSES,
        ),
        Setting(
            name="topics",
            kind="texts",
            group="work",
            about="only these topics, of those that have a handler",
            default=(),
        ),
        Setting(
            name="time_limit",
            kind="seconds",
            group="work",
            about="stop in order after this time; unset: no limit",
        ),
        Setting(
            name="linger",
            kind="seconds",
            group="work",
            about="drain waits this long for messages that become due",
            default=5.0,
        ),
        Setting(
            name="retry_linger",
            kind="seconds",
            group="work",
            about="drain waits this long for the next try of failed ones; 0 if linger is 0",
            default=300.0,
        ),
        Setting(
            name="outage_limit",
            kind="seconds",
            group="work",
            about="drain gives up when the database has been unreachable for so long",
            default=60.0,
        ),
        Setting(
            name="grace",
            kind="seconds",
            group="work",
            about="how long running handlers may continue at a stop",
            default=30.0,
            most=86_400,
        ),
        Setting(
            name="metrics_port",
            kind="whole",
            group="work",
            about="serve metrics for Prometheus at this port; unset: none",
            least=1,
            most=65_535,
        ),
        Setting(
            name="metrics_host",
            kind="text",
            group="work",
            about="the address at which metrics are served",
            default="127.0.0.1",
        ),
        Setting(
            name="locks",
            kind="text",
            group="locks",
            about="where locks are kept: database, or the URL of Redis or ZooKeeper",
            default="database",
        ),
        Setting(
            name="scope",
            kind="text",
            group="work",
            about="where to look: everywhere, instance:TYPE, partitions:SHARDS or segments",
            default="everywhere",
        ),
        Setting(
            name="segments",
            kind="layout",
            group="work",
            about="of the scope segments: the name of each lock and its shards",
            default={},
        ),
        Setting(
            name="on_outage",
            kind="choice",
            group="work",
            about="of the scope segments: what to do while the locks cannot be reached",
            default="stop",
            choices=("stop", "unscoped"),
        ),
        Setting(
            name="log_level",
            kind="choice",
            group="log",
            about="unset: info for run and drain, warning for all others",
            choices=("debug", "info", "warning", "error"),
        ),
        Setting(
            name="log_format",
            kind="choice",
            group="log",
            about="how log lines on stderr look",
            default="text",
            choices=("text", "json"),
        ),
        Setting(
            name="web_host",
            kind="text",
            group="web",
            about="the address that the dashboard listens on",
            default="127.0.0.1",
        ),
        Setting(
            name="web_port",
            kind="whole",
            group="web",
            about="the port of the dashboard; 0 = a free one",
            default=8080,
            most=65_535,
        ),
        Setting(
            name="web_token_file",
            kind="text",
            group="web",
            about="a file of mode 0600 with a TOKEN, or lines of NAME ROLE TOKEN",
        ),
        Setting(
            name="web_allow_actions",
            kind="flag",
            group="web",
            about="let operators and admins act; else all only look",
            default=False,
        ),
        Setting(
            name="web_role",
            kind="choice",
            group="web",
            about="the role of those who have none of their own",
            default="admin",
            choices=("viewer", "operator", "admin"),
        ),
        Setting(
            name="web_root_path",
            kind="text",
            group="web",
            about="the path below which a proxy serves the dashboard, such as /queue",
        ),
        Setting(
            name="web_allowed_hosts",
            kind="texts",
            group="web",
            about="names, with their port, that browsers know the dashboard by",
            default=(),
        ),
        Setting(
            name="web_trusted_proxies",
            kind="texts",
            group="web",
            about="addresses of proxies whose X-Forwarded-Host, -Proto and -For are believed",
            default=(),
        ),
        Setting(
            name="web_trusted_proxy_header",
            kind="text",
            group="web",
            about="the header in which a trusted proxy names the user it has let in",
        ),
        Setting(
            name="web_role_header",
            kind="text",
            group="web",
            about="the header in which it says the role of that user; without it --role is for all",
        ),
        Setting(
            name="web_redact",
            kind="texts",
            group="web",
            about="paths of payloads that are hidden, such as customer.card or **.iban",
            default=(),
        ),
        Setting(
            name="web_label",
            kind="text",
            group="web",
            about="shown beside the name on every page, such as PROD",
        ),
    )
}
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
