"""Answers of ops that are no result, but belong on the page: what is missing, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from msgworker.errors import ConfigError, DatabaseUnavailable, MsgworkerError, SchemaError

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no result, and what to do about it."""

    text: str


def or_missing(call: Callable[[], R]) -> R | Refused:
    """The result, or which table or column is missing."""
    try:
        return call()
    except SchemaError as error:
        return Refused(str(error))


def or_refused(call: Callable[[], R]) -> R | Refused:
    """The result, or why ops refuses: it is about what was asked for, not about the request."""
    try:
        return call()
    except DatabaseUnavailable:
        raise
    except (ConfigError, MsgworkerError) as error:
        return Refused(str(error))
