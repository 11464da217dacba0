"""The cookie of a browser, signed, and the token that the forms of a session carry."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass

from msgworker.errors import ConfigError
from msgworker.web.tokens import Entry

SESSION_SECONDS = 12 * 3600
MOST_ENDED = 10_000
"""The most log-outs that are kept; with one more all sessions end that had begun before."""
COOKIE = "msgworker_session"


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie says. sid: new for each browser. name, proof: of the token it was made with, ""
    where no log-in came first: then it is only there for the token of forms. until: epoch s."""

    sid: str
    name: str
    proof: str
    until: int


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
        self.seconds = seconds
        self._ended: dict[str, int] = {}
        self._least_until = 0

    def begin(self, entry: Entry | None = None) -> Session:
        """A new session, of one who has logged in or of none."""
        name, proof = ("", "") if entry is None else (entry.name, entry.proof)
        return Session(secrets.token_urlsafe(18), name, proof, int(time.time()) + self.seconds)

    def text_of(self, session: Session) -> str:
        """The value of the cookie."""
        values = [session.sid, session.name, session.proof, session.until]
        body = base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
        return f"{body}.{self._signed('session', body)}"

    def read(self, text: str | None) -> Session | None:
        """The session of a cookie; None if it is not ours or has expired."""
        body, _, signature = (text or "").partition(".")
        if not hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._signed("session", body).encode()
        ):
            return None
        sid, name, proof, until = json.loads(
            base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        )
        found = Session(sid, name, proof, until)
        return found if self.is_valid(found) else None

    def is_valid(self, session: Session) -> bool:
        """Whether it has neither expired nor been ended."""
        ended = session.sid in self._ended or session.until <= self._least_until
        return not ended and session.until >= time.time()

    def end(self, session: Session | None) -> None:
        """Log out: the cookie is worth nothing any more, whoever has a copy."""
        if session is None or not session.name:
            return
        if len(self._ended) >= MOST_ENDED:
            now = time.time()
            self._ended = {sid: until for sid, until in self._ended.items() if until >= now}
        if len(self._ended) >= MOST_ENDED:
            self._least_until = int(time.time()) + self.seconds
            self._ended.clear()
        self._ended[session.sid] = session.until

    def form_token(self, session: Session) -> str:
        """What a form of this session has to carry."""
        return self._signed("form", session.sid)

    def is_form_token(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(
            given.encode("utf-8", "replace"), self.form_token(session).encode()
        )

    def _signed(self, purpose: str, text: str) -> str:
        data = f"{purpose}\0{text}".encode("utf-8", "replace")
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()
