"""The precedence of values.

Keyword > option > MSGWORKER_* environment > msgworker.toml > [tool.msgworker] in pyproject.toml >
default. A value is checked where it is read, so that an error names its place. An unknown key is an
error, because a silently ignored setting would be noticed only in production.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgworker.config.settings import PREFIX, SETTINGS, Group, flag_of
from msgworker.config.values import nearest
from msgworker.errors import ConfigError

MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Configuration:
    """The value of every setting and its origin.

    schedules: the tables [schedule.NAME] as they are in the files, each with its file.
    """

    values: dict[str, Any]
    origins: dict[str, str]
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    schedules: Mapping[str, tuple[Any, str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def given(self, name: str) -> bool:
        return self.origins[name] != "default"

    def group(self, group: Group) -> dict[str, Any]:
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
    """The configuration of this process.

    flags: values from the command line by setting name; None = not given. keywords: values from
    code, which win over all others. folder: the folder of msgworker.toml and pyproject.toml.
    file: read instead of msgworker.toml, and must exist.
    Raises ConfigError for wrong values, keys or files, and names the place.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {name: s.default for name, s in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")

    def layer(
        found: Mapping[str, Any], origin: Callable[[str], str], place: Callable[[str], str]
    ) -> None:
        for name, value in found.items():
            setting = SETTINGS[name]
            unset = value is None and setting.default is None  # only code can unset a value
            values[name] = None if unset else setting.read(value, place(name))
            origins[name] = origin(name)

    schedules: dict[str, tuple[Any, str]] = {}

    def file_layer(found: dict[str, Any], origin: str) -> None:
        tables = found.pop("schedule", {})
        if not isinstance(tables, Mapping):
            raise ConfigError(f"schedule in {origin} must be tables: [schedule.NAME]")
        schedules.update((str(name), (table, origin)) for name, table in tables.items())
        layer(found, lambda _: origin, lambda name: f"{name} in {origin}")

    own = Path(folder) / "msgworker.toml" if file is None else Path(file)
    file_layer(_section(Path(folder) / "pyproject.toml"), "pyproject.toml [tool.msgworker]")
    name = own.name if file is None else str(file)
    file_layer(_known(_toml(own, needed=file is not None), name, TABLES), name)
    variable = {name: s.variable for name, s in SETTINGS.items()}
    layer(_environment(environ), lambda name: f"environment {variable[name]}", variable.__getitem__)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    layer(given, lambda name: f"option {flag_of(name)}", flag_of)
    layer(_known(keywords or {}, keywords_from), lambda _: keywords_from, str)
    return Configuration(values=values, origins=origins, environ=environ, schedules=schedules)


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


SECRET = ("WEB_TOKEN", "WEB_KEY")
"""Variables of `msgworker web` that are no settings: no file or option has them."""
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
    the services named msgworker and msgworker-web. Its MSGWORKER_WEB_PORT holds tcp://host:port;
    with a bare number, a person has meant it as a setting.
    """
    rest = variable.removeprefix(PREFIX)
    if rest.startswith("TEST_") or rest in SECRET or _SERVICE_LINK.fullmatch(rest):
        return True
    named = rest == "PORT" or rest.endswith("_PORT")
    return named and _SERVICE_URL.match(value) is not None


def _section(path: Path) -> dict[str, Any]:
    tool = _toml(path, needed=False).get("tool", {})
    section = tool.get("msgworker", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise ConfigError("tool.msgworker in pyproject.toml must be a table: [tool.msgworker]")
    return _known(section, "pyproject.toml [tool.msgworker]", TABLES)


IN_SCOPE = {"kind": "scope", "segments": "segments", "on_outage": "on_outage", "locks": "locks"}
"""The keys of the table [scope] in a file, and the setting of each."""
IN_WEB = {name.removeprefix("web_"): name for name, s in SETTINGS.items() if s.group == "web"}
SECTIONS: dict[str, Mapping[str, str]] = {"scope": IN_SCOPE, "web": IN_WEB}
"""Tables of a file whose keys are settings."""


TABLES = ("schedule",)
"""Tables of a file that are no settings."""


def _known(found: Mapping[str, Any], where: str, tables: tuple[str, ...] = ()) -> dict[str, Any]:
    for section, keys in SECTIONS.items():
        if not isinstance(found.get(section), Mapping):
            continue
        table = dict(found[section])
        found = {name: value for name, value in found.items() if name != section}
        for name in table:
            if name not in keys:
                raise ConfigError(
                    f"unknown setting {name!r:.60} in [{section}] of {where}; {nearest(name, keys)}"
                )
            if keys[name] in found:
                raise ConfigError(
                    f"{keys[name]} is set twice in {where}: as {name} in [{section}], and beside it"
                )
        found = {**found, **{keys[name]: value for name, value in table.items()}}
    for name in found:
        if name not in SETTINGS and name not in tables:
            hint = nearest(name, (*SETTINGS, *tables))
            raise ConfigError(f"unknown setting {name!r:.60} in {where}; {hint}")
    return dict(found)


def _toml(path: Path, *, needed: bool) -> dict[str, Any]:
    """A TOML file as a dict, {} if there is none; raises ConfigError for any other problem."""
    import tomllib  # only a program with a file needs it

    try:
        if not needed and not path.exists():
            return {}
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, but must be a TOML file")
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a FIFO may block
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
    """Replace ${NAME} with the values of environment variables.

    In the user, the password and the query they are percent-encoded, so that a password may hold
    any character; elsewhere, and when the whole url is one placeholder, they are used unchanged.
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
