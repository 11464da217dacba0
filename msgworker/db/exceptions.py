"""What an exception of a driver tells: its code, and its text without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from msgworker.payload import without_url_secrets

# --- The code of a driver's exception, wherever the driver keeps it.


def code_of(error: BaseException | None) -> tuple[int | None, str | None]:
    """Number and SQLSTATE, each None if the error has none. The number is that of MySQL and
    MariaDB, whose states are less precise; Oracle's stands in the text.

    PyMySQL and mysqlclient have the number first in `args`, MariaDB Connector/Python as `errno`;
    psycopg 3 has the state as `sqlstate`, psycopg2 as `pgcode`.
    """
    first = error.args[0] if error is not None and error.args else None
    number = first if isinstance(first, int) else getattr(error, "errno", None)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return (
        number if isinstance(number, int) else None,
        state if isinstance(state, str) else None,
    )


# --- URLs and texts without their secrets.

HARMLESS = re.compile(
    r"application_name|cache|charset|check_same_thread|client_encoding|connect_timeout|events|"
    r"gssencmode|host|hostaddr|immutable|isolation_level|keepalives|keepalives_count|"
    r"keepalives_idle|keepalives_interval|mode|nolock|pooler|port|prepare_threshold|read_timeout|"
    r"server_side_cursors|"
    r"service_name|ssl_ca|ssl_check_hostname|ssl_verify_cert|ssl_verify_identity|sslmode|"
    r"sslrootcert|target_session_attrs|tcp_connect_timeout|tcp_user_timeout|timeout|unix_socket|"
    r"uri|use_unicode|write_timeout"
)
"""Keys of a URL's query whose values are shown. Others may hold secrets."""
_SECRET_KEY = re.compile(r"passw|secret|token|pwd|credential|sslkey", re.I)
_SHORT = 5
"""The most characters of a secret that may also be an ordinary word."""


def masked(url: URL) -> str:
    """The URL as text without its password, and with only harmless parts of its query."""
    query = {key: value if HARMLESS.fullmatch(key) else "***" for key, value in url.query.items()}
    shown = url.set(query=query).render_as_string(hide_password=True)
    return shown.replace("%2A%2A%2A", "***")


def secrets_of(url: str | URL) -> set[str]:
    """The secrets of a URL, plain and percent-encoded, to remove them from texts. A short value or
    a number is a secret only under a key that says so."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return set()
    values = [str(parsed.password)] if parsed.password else []
    for key, value in parsed.query.items():
        given = [value] if isinstance(value, str) else list(value)
        values += [text for text in given if _is_secret(key, text)]
    texts = {text for value in values for text in (value, quote(value, safe=""), quote_plus(value))}
    return {text for text in texts if len(text) > 2 and text != "msgworker"}


def _is_secret(key: str, value: str) -> bool:
    if _SECRET_KEY.search(key):
        return True
    return not HARMLESS.fullmatch(key) and len(value) > _SHORT and not value.isdecimal()


def without(text: str, secrets: Iterable[str]) -> str:
    """The text with "***" for each secret, a short one only as a separate word, and for what looks
    like a password or key in any URL."""
    text = without_url_secrets(text)
    for secret in sorted(secrets, key=len, reverse=True):
        word = re.escape(secret) if len(secret) > _SHORT else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(word, "***", text)
    return text
