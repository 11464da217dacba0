"""Tokens, from a file that only its owner may read or from the environment; and what a role is."""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgworker.errors import ConfigError
from msgworker.payload import clean

TOKEN_VARIABLE = "MSGWORKER_WEB_TOKEN"
LEAST_TOKEN = 16
"""The fewest characters of a token; shorter ones can be guessed."""
MOST_NAME = 100


RoleName = Literal["viewer", "operator", "admin"]


class Role(enum.IntEnum):
    """What a viewer may do; each role may do what those before it may.

    VIEWER reads. OPERATOR also acts on messages, topics and instances. ADMIN also does what cannot
    be taken back or changes what is declared: purge, schedules, limits.
    """

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @classmethod
    def of(cls, word: Any) -> Role:
        """The role of a name, "viewer", "operator" or "admin"; raises ConfigError."""
        if isinstance(word, Role):
            return word
        if isinstance(word, str) and word.upper() in cls.__members__:
            return cls[word.upper()]
        raise ConfigError(f"a role is viewer, operator or admin, got {word!r:.60}")

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Entry:
    """A token and whose it is. role: None = that of the site."""

    name: str
    token: str = field(repr=False)
    role: Role | None = None


def read_tokens(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """The tokens of a file that only its owner may read: a line with a TOKEN alone, or
    `NAME ROLE TOKEN`; `#` begins a comment. Raises ConfigError."""
    place = Path(path)
    try:
        found = place.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{place} is not a regular file; a token file must be one")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise ConfigError(
                f"{place} may be read or written by others (mode {mode:04o}): chmod 600 {place}"
            )
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{place} cannot be read: {why}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) not in (1, 3):
            raise ConfigError(f"{place} line {number} must be TOKEN, or NAME ROLE TOKEN")
        name, role = ("token", None) if len(words) == 1 else (words[0], Role.of(words[1]))
        entries.append(entry(words[-1], f"{place} line {number}", name=name, role=role))
    return checked(entries, str(place))


def tokens_from(environ: Mapping[str, str]) -> tuple[Entry, ...]:
    """The token of the environment, if there is one; raises ConfigError."""
    given = environ.get(TOKEN_VARIABLE)
    return () if given is None else (entry(given.strip(), TOKEN_VARIABLE),)


def entry(token: str, place: str, *, name: str = "token", role: Role | None = None) -> Entry:
    """A checked entry. The error does not repeat the token."""
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{place}: a token has at least {LEAST_TOKEN} printable ASCII characters; make one "
            'with `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )
    return Entry(clean(name, MOST_NAME), token, role)


def checked(entries: Sequence[Entry], place: str) -> tuple[Entry, ...]:
    """Some entries, each name and each token once; raises ConfigError."""
    if not entries:
        raise ConfigError(f"{place} has no token")
    for what, values in (
        ("name", [one.name for one in entries]),
        ("token", [one.token for one in entries]),
    ):
        if len(set(values)) < len(values):
            raise ConfigError(f"{place} has the same {what} twice")
    return tuple(entries)
