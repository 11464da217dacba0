"""Settings: what there is to set, the limits of each, and where a value came from.

Keyword > flag > MSGWORKER_* environment > msgworker.toml > [tool.msgworker] in pyproject.toml >
default. A value is checked where it is read, so that an error names its place; a key that nobody
knows is an error, because a setting that is silently ignored is found out at night.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from msgworker.errors import ConfigError

MAX_THREADS = 1024
MAX_PROCESSES = 256
YEAR_SECONDS = 366 * 86_400.0
MAX_FILE_BYTES = 1_000_000
PREFIX = "MSGWORKER_"
MAX_TRIES = 1000
BACKOFF_SECONDS = 20.0

_LIMITS: dict[str, tuple[float, float]] = {
    "lease_seconds": (0.3, 86_400),
    "poll_seconds": (0.001, 3_600),
    "run_limit": (0, 10_000),
    "lanes_limit": (1, 100_000),
    "foreign_stale_after": (1, YEAR_SECONDS),
    "backoff_seconds": (0, 480),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How instances of an App behave.

    lease_seconds: how long an instance is believed to live without a heartbeat (sent every third).
    poll_seconds: the longest pause between looks at an idle table; a busy one is looked at often.
    run_limit: how many messages of an object are read ahead behind its head.
    lanes_limit: how many objects an instance has in hand at most.
    notify: on PostgreSQL, wake up workers of other processes when a message is sent.
    foreign_stale_after: seconds after which a message that a foreign consumer has flagged is taken
    from it; None = never. Its price: a foreign consumer that is only slow is then not excluded.
    backoff_seconds: the pause after a first failed try; each further one is five times as long, all
    are up to a quarter longer, so that not all come back at once, and 600 s at most. 0 = none. A
    handler's own `wait` goes before it.
    """

    lease_seconds: float = 30.0
    poll_seconds: float = 1.0
    run_limit: int = 20
    lanes_limit: int = 1000
    notify: bool = False
    foreign_stale_after: float | None = None
    backoff_seconds: float = BACKOFF_SECONDS

    def __post_init__(self) -> None:
        number("lease_seconds", self.lease_seconds, *_LIMITS["lease_seconds"])
        number("poll_seconds", self.poll_seconds, *_LIMITS["poll_seconds"])
        whole("run_limit", self.run_limit, *_LIMITS["run_limit"])
        whole("lanes_limit", self.lanes_limit, *_LIMITS["lanes_limit"])
        if self.foreign_stale_after is not None:
            number("foreign_stale_after", self.foreign_stale_after, *_LIMITS["foreign_stale_after"])
        number("backoff_seconds", self.backoff_seconds, *_LIMITS["backoff_seconds"])
        if not isinstance(self.notify, bool):
            raise ConfigError(f"notify must be True or False, got {self.notify!r}")

    @property
    def heartbeat_seconds(self) -> float:
        return self.lease_seconds / 3

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))


# ---------------------------------------------------------------- single values


def number(name: str, value: Any, least: float, most: float) -> float:
    """A finite number in a range, or ConfigError."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or not least <= value <= most:
        raise ConfigError(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
    return float(value)


def whole(name: str, value: Any, least: float, most: float) -> int:
    """A whole number in a range, or ConfigError."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or not least <= value <= most:
        raise ConfigError(
            f"{name} must be a whole number from {least:.0f} to {most:.0f}, got {value!r:.80}"
        )
    return int(value)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d|w)?\s*", re.ASCII)


def seconds(name: str, value: Any, least: float = 0.0, most: float = 100 * YEAR_SECONDS) -> float:
    """A duration in seconds: 30, "30", "30s", "25m", "2h", "30d", ms and w; or ConfigError."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ConfigError(
                f"{name} must be a duration such as 30, 30s, 25m, 2h or 30d, got {value!r:.80}"
            )
        value = float(match[1]) * _UNITS[match[2] or "s"]
    return number(name, value, least, most)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest one, or all of them."""
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"did you mean {names[near[0]]}?" if near else f"known are: {', '.join(names.values())}"


# ---------------------------------------------------------------- what there is to set

Kind = Literal["text", "seconds", "whole", "flag", "choice", "texts", "names", "layout"]
Group = Literal["database", "table", "app", "work", "locks", "log"]
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its name in files, its kind and limits, and its default.

    kind: "texts" is a list of texts, "names" a table of role = column name (false = not there).
    group: who is told: the engine, MessageTable, App, `run` and `drain`, the lock centre, or the
    log.
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
        """The value, checked; `place` is how people know it: --threads, MSGWORKER_THREADS, ..."""
        if self.kind == "seconds":
            return seconds(place, value, self.least, self.most)
        if self.kind == "whole":
            return whole(place, _int(value), self.least, self.most)
        if self.kind == "flag":
            return _flag(value, place)
        if self.kind == "texts":
            return _texts(value, place)
        if self.kind == "names":
            return _names(value, place)
        if self.kind == "layout":
            return _layout(value, place)
        if not isinstance(value, str) or not value.strip():
            # An empty or odd url is not repeated: it may hold a password.
            got = "" if self.name in ("url", "locks") else f", got {value!r:.80}"
            raise ConfigError(f"{place} must be a text{got}")
        if self.kind == "choice" and value not in self.choices:
            choices = ", ".join(self.choices)
            raise ConfigError(f"{place} must be one of {choices}; got {value!r:.80}")
        return value


def _int(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value, re.ASCII):
        return int(value)
    return value


def _flag(value: Any, place: str) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if isinstance(word, bool):
        return word
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ConfigError(f"{place} must be true or false, got {value!r:.80}")


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise ConfigError(f'{place} must be a list of texts such as ["a", "b"], got {value!r:.80}')
    return tuple(value)


def _names(value: Any, place: str) -> dict[str, str | None]:
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise ConfigError(f"{place} must look like msg_id=ID,payload= ; got {value!r:.80}")
        value = {role.strip(): name.strip() or False for role, _, name in pairs}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} must be a table of column names, got {value!r:.80}")
    for role, name in value.items():
        if not (name is None or name is False or (isinstance(name, str) and name)):
            raise ConfigError(f"{place}.{role} must be a column's name or false, got {name!r:.80}")
    return {role: name or None for role, name in value.items()}


def _layout(value: Any, place: str) -> dict[str, list[int]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ConfigError(f'{place} must look like {{"segment:0": [0, 1]}} as JSON') from None
    good = isinstance(value, Mapping) and all(
        isinstance(part, list) and all(type(n) is int for n in part) for part in value.values()
    )
    if not good:
        raise ConfigError(f"{place} must be a table of lists of shards, got {value!r:.80}")
    return {str(name): list(part) for name, part in value.items()}


def _app(name: str, kind: Kind, about: str) -> Setting:
    least, most = _LIMITS.get(name, (0.0, YEAR_SECONDS))
    default = getattr(Settings(), name)
    return Setting(
        name=name, kind=kind, group="app", about=about, default=default, least=least, most=most
    )


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
            about="column names of a table that exists already, role = name, false = not there",
            default={},
        ),
        Setting(
            name="on_dead",
            kind="choice",
            group="table",
            about="what becomes of an object whose message is dead",
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
            about="how often a message may ask for RetryLater",
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
        _app("lease_seconds", "seconds", "how long an instance is believed to live unheard of"),
        _app("poll_seconds", "seconds", "the longest pause between two looks at an idle table"),
        _app("run_limit", "whole", "how many messages of an object are read ahead"),
        _app("lanes_limit", "whole", "how many objects an instance has in hand at most"),
        _app("notify", "flag", "on PostgreSQL, wake up other processes when a message is sent"),
        _app(
            "foreign_stale_after",
            "seconds",
            "take messages from a foreign consumer after this time; unset: never",
        ),
        _app("backoff_seconds", "seconds", "the pause after a first failed try; then 5 times it"),
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
            about="how many processes work side by side",
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
            about="drain gives up when the database has been away for so long",
            default=60.0,
        ),
        Setting(
            name="grace",
            kind="seconds",
            group="work",
            about="how long running handlers may go on at a stop",
            default=30.0,
            most=86_400,
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
            about="where to look: everywhere, instance:FLAG, partitions:SHARDS or segments",
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
    )
}
"""Every setting there is, in the order in which people are shown them."""


# ---------------------------------------------------------------- layers


@dataclass(frozen=True, slots=True)
class Configuration:
    """The value of every setting and where each came from."""

    values: dict[str, Any]
    origins: dict[str, str]
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def given(self, name: str) -> bool:
        """Whether somebody has set it."""
        return self.origins[name] != "default"

    def group(self, group: Group) -> dict[str, Any]:
        """The values of one group."""
        return {name: self.values[name] for name, s in SETTINGS.items() if s.group == group}

    @property
    def url(self) -> str:
        """The database's URL with its ${NAME} placeholders filled in.

        Raises ConfigError if there is none, or if a placeholder's variable is not set.
        """
        if not self.values["url"]:
            raise ConfigError(
                "a database url is required: give --url, set MSGWORKER_URL, or write "
                'url = "sqlite:///messages.db" in msgworker.toml'
            )
        return fill(self.values["url"], self.environ, f"url ({self.origins['url']})")

    @property
    def locks(self) -> str:
        """Where locks are kept, with its ${NAME} placeholders filled in; see `url`."""
        return fill(self.values["locks"], self.environ, f"locks ({self.origins['locks']})")


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    keywords: Mapping[str, Any] | None = None,
    keywords_from: str = "keyword",
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] = ".",
    file: str | os.PathLike[str] | None = None,
) -> Configuration:
    """The configuration as this process would use it.

    flags: values from the command line by setting name; None = not given. keywords: values from
    code, which win over all others. folder: where msgworker.toml and pyproject.toml are looked for.
    file: read instead of msgworker.toml, and must be there.
    Raises ConfigError for values, keys or files that are wrong, and names the place.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {name: s.default for name, s in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")

    def layer(
        found: Mapping[str, Any], origin: Callable[[str], str], place: Callable[[str], str]
    ) -> None:
        for name, value in found.items():
            setting = SETTINGS[name]
            unset = value is None and setting.default is None  # by code: nobody else can say so
            values[name] = None if unset else setting.read(value, place(name))
            origins[name] = origin(name)

    def file_layer(found: Mapping[str, Any], origin: str) -> None:
        layer(found, lambda _: origin, lambda name: f"{name} in {origin}")

    own = Path(folder) / "msgworker.toml" if file is None else Path(file)
    file_layer(_section(Path(folder) / "pyproject.toml"), "pyproject.toml [tool.msgworker]")
    file_layer(_known(_toml(own, needed=file is not None), own.name), own.name)
    variable = {name: s.variable for name, s in SETTINGS.items()}
    layer(_environment(environ), lambda name: f"environment {variable[name]}", variable.__getitem__)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    layer(given, lambda name: f"flag {flag_of(name)}", flag_of)
    layer(_known(keywords or {}, keywords_from), lambda _: keywords_from, str)
    return Configuration(values=values, origins=origins, environ=environ)


def flag_of(name: str) -> str:
    """The command line's flag of a setting."""
    return {"topics": "--topic"}.get(name, "--" + name.replace("_", "-"))


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or _foreign(variable, value):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in SETTINGS:
            hint = nearest(variable, (s.variable for s in SETTINGS.values()))
            raise ConfigError(f"unknown setting {variable} in the environment; {hint}")
        found[name] = value
    return found


_SERVICE_LINK = re.compile(
    r"(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:ADDR|PORT|PROTO))?)",
    re.ASCII,
)
_SERVICE_URL = re.compile(r"(?:tcp|udp|sctp)://", re.IGNORECASE)


def _foreign(variable: str, value: str) -> bool:
    """Variables with our prefix that are not settings.

    Kubernetes gives every container MSGWORKER_SERVICE_HOST, MSGWORKER_WEB_PORT_80_TCP and so on for
    the services named msgworker and msgworker-web. Its MSGWORKER_WEB_PORT holds tcp://host:port:
    with a bare number it is something that a person has meant as a setting.
    """
    rest = variable.removeprefix(PREFIX)
    if rest.startswith("TEST_") or _SERVICE_LINK.fullmatch(rest):
        return True
    named = rest == "PORT" or rest.endswith("_PORT")
    return named and _SERVICE_URL.match(value) is not None


def _section(path: Path) -> dict[str, Any]:
    tool = _toml(path, needed=False).get("tool", {})
    section = tool.get("msgworker", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise ConfigError("tool.msgworker in pyproject.toml must be a table: [tool.msgworker]")
    return _known(section, "pyproject.toml [tool.msgworker]")


IN_SCOPE = {"kind": "scope", "segments": "segments", "on_outage": "on_outage", "locks": "locks"}
"""What may stand in the table [scope] of a file, and the setting that each is."""


def _known(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    if isinstance(found.get("scope"), Mapping):
        table = dict(found["scope"])
        for name in table:
            if name not in IN_SCOPE:
                raise ConfigError(
                    f"unknown setting {name!r:.60} in [scope] of {where}; {nearest(name, IN_SCOPE)}"
                )
            if name != "kind" and IN_SCOPE[name] in found:
                raise ConfigError(f"{name} is set twice in {where}: in [scope] and beside it")
        found = {name: value for name, value in found.items() if name != "scope"}
        found = {**found, **{IN_SCOPE[name]: value for name, value in table.items()}}
    for name in found:
        if name not in SETTINGS:
            raise ConfigError(f"unknown setting {name!r:.60} in {where}; {nearest(name, SETTINGS)}")
    return dict(found)


def _toml(path: Path, *, needed: bool) -> dict[str, Any]:
    """A TOML file as a dict, {} if there is none; every other trouble is a ConfigError."""
    try:
        if not needed and not path.exists():
            return {}
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, but must be a TOML file")
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # to read a FIFO may last for ever
            raise ConfigError(f"{path} is not a regular file; a configuration must be one")
        if found.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is too large for a configuration ({MAX_FILE_BYTES:,} bytes)")
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(
            f"{path} line 1 has a byte order mark (BOM); save it as UTF-8 without one"
        )
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} line {line} is not UTF-8; save the file as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_USERINFO = re.compile(r"://[^/]*@")


def fill(url: str, environ: Mapping[str, str], place: str = "url") -> str:
    """Put the values of environment variables where ${NAME} stands.

    In the user, the password and the query they are percent-encoded, so that a password may hold
    any character; elsewhere, and when the whole url is one placeholder, they are taken as they are.
    """
    userinfo = _USERINFO.search(url)
    query = url.find("?")

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            raise ConfigError(
                f"{place} needs the environment variable {name}, which is not set; "
                f"set it, or write %24{{{name}}} if it is meant literally"
            )
        inside = userinfo is not None and userinfo.start() < match.start() < userinfo.end()
        encoded = inside or -1 < query < match.start()
        return quote(environ[name], safe="") if encoded else environ[name]

    return _PLACEHOLDER.sub(value, url)
