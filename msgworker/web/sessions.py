"""Tokens with their roles, and the signed cookie of a browser."""

from __future__ import annotations

import enum
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from itsdangerous import BadData, Signer, URLSafeSerializer
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from msgworker.errors import ConfigError
from msgworker.payload import clean

# --- Tokens, from a file that only its owner may read or from the environment; and what a role is.

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


# --- The cookie of a browser, signed, and the token that the forms of a session carry.

SESSION_SECONDS = 12 * 3600
MOST_ENDED = 10_000
"""The most log-outs that are kept of one name; with one more all sessions of that name end that had
begun before."""
MOST_COOKIES = 8
"""Of one name that are looked at."""
COOKIE = "msgworker_session"
SIGNED: Any = {"key_derivation": "hmac", "digest_method": hashlib.sha256}


def cookies_of(request: HTTPConnection, name: str) -> list[str]:
    """The first MOST_COOKIES values of a cookie of ours. There are several where dashboards of one
    host are at "/" and at "/queue", or were: a browser sends that of the longest path first. Ours
    need no quotes, and to undo quotes takes Python before 3.11.10 and 3.12.6 the square of their
    length (CVE-2024-7592)."""
    found = []
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            key, _, value = part.partition("=")
            if key.strip() == name:
                found.append(value.strip())
    return found[:MOST_COOKIES]


def is_secure(scope: Scope) -> bool:
    """Whether the browser came by https. What a client says of that concerns its own cookie alone,
    so it is believed: of a proxy that is not named, and of the page that a form was on."""
    headers = Headers(scope=scope)
    origin, proto = headers.get("origin", ""), headers.get("x-forwarded-proto", "")
    return "https" in (scope.get("scheme"), urlsplit(origin).scheme, proto.strip().lower())


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie says. sid: new for each browser. name, proof: of the token it was made with, ""
    where no log-in came first: then it is only there for the token of forms. proof: keyed, so that
    who has the cookie cannot try tokens by it. until: epoch s."""

    sid: str
    name: str
    proof: str
    until: float


class Sessions:
    """Signs and reads the cookie, makes the token that each form carries, and keeps who has logged
    out.

    key: of the signature, at least 32 characters; None = a new one, so that sessions end with
    the process. Another process with the same key does not know of a log-out in this one.
    """

    def __init__(self, key: str | None = None, *, seconds: int = SESSION_SECONDS) -> None:
        if key is not None and len(key) < 32:
            raise ConfigError("the key of sessions must have at least 32 characters")
        self._key = secrets.token_bytes(32) if key is None else key.encode("utf-8")
        self._given = key is not None
        self._cookies = URLSafeSerializer(
            self._key, salt="msgworker session", signer_kwargs=dict(SIGNED)
        )
        self.seconds = seconds
        self._ended: dict[str, dict[str, float]] = {}
        self._least_until: dict[str, float] = {}

    def cookie(self, scope: Scope) -> str:
        """The name of the cookie: browsers send those of a host to each port of it, so that two
        dashboards there need two names. Processes with one key share their sessions."""
        server = scope.get("server") or ("", None)
        of = self._signature("name", "")[:8] if self._given else server[1]
        return COOKIE if of is None else f"{COOKIE}_{of}"

    def proof_of(self, entry: Entry) -> str:
        """Proof that a session was begun with this token: it ends when the token changes."""
        return self._signature("proof", entry.token)

    def begin(self, entry: Entry | None = None) -> Session:
        """A new session, of one who has logged in or of none."""
        name, proof = ("", "") if entry is None else (entry.name, self.proof_of(entry))
        return Session(secrets.token_urlsafe(18), name, proof, time.time() + self.seconds)

    def text_of(self, session: Session) -> str:
        values = [session.sid, session.name, session.proof, session.until]
        return str(self._cookies.dumps(values))

    def of(self, request: HTTPConnection) -> list[Session]:
        """The sessions of a request, the one that counts first: that of a log-in, else any."""
        texts = cookies_of(request, self.cookie(request.scope))
        found = [one for one in map(self.read, texts) if one is not None]
        return sorted(found, key=lambda one: not one.name)

    def read(self, text: str | None) -> Session | None:
        """The session of a cookie; None if it is not ours or has expired."""
        try:
            found = Session(*self._cookies.loads((text or "").encode("utf-8", "replace")))
        except BadData:
            return None
        return found if self.is_valid(found) else None

    def is_valid(self, session: Session) -> bool:
        """Whether it has neither expired nor been ended."""
        ended = session.sid in self._ended.get(session.name, ())
        early = session.until <= self._least_until.get(session.name, 0.0)
        return not ended and not early and session.until >= time.time()

    def end(self, session: Session | None) -> None:
        """Log out: the cookie is invalid from now on, and so are copies of it."""
        if session is None or not session.name:
            return
        ended = self._ended.setdefault(session.name, {})
        if len(ended) >= MOST_ENDED:
            now = time.time()
            for sid in [sid for sid, until in ended.items() if until < now]:
                del ended[sid]
        if len(ended) >= MOST_ENDED:
            self._least_until[session.name] = time.time() + self.seconds
            ended.clear()
        ended[session.sid] = session.until

    def form_token(self, session: Session) -> str:
        """What a form of this session has to carry."""
        return self._signature("form", session.sid)

    def is_form_token(self, session: Session, given: str) -> bool:
        return self._signer("form").verify_signature(session.sid, given)

    def _signature(self, purpose: str, text: str) -> str:
        return self._signer(purpose).get_signature(text).decode()

    def _signer(self, purpose: str) -> Signer:
        return Signer(self._key, salt=f"msgworker {purpose}", **SIGNED)
