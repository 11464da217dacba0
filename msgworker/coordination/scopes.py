"""Where an instance looks: everywhere, or at messages with its flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgworker.errors import ConfigError
from msgworker.instance.claiming.seat import Scope, Seat, Standing
from msgworker.payload import is_text
from msgworker.table import MAX_FLAG, Slice


class Everywhere(Scope):
    """The whole table; as without a scope."""

    def seat(self, standing: Standing) -> None:
        """None: there is nothing to separate."""

    def __repr__(self) -> str:
        return "Everywhere()"


class Instance(Scope):
    """The messages whose instance_type is `flag`; a `Dealer` writes it.

    Several processes may have the same flag: they share its messages.
    Raises ConfigError for a flag that is empty or longer than 30 characters.
    """

    role = "instance_type"

    def __init__(self, flag: str) -> None:
        self.flag = check_flag(flag)

    def seat(self, standing: Standing) -> Seat:
        """A seat beside the others of this flag."""
        where = Slice("instance_type", (self.flag,), exclusive=False)
        return _Fixed(where, {"kind": "instance", "flag": self.flag})

    def __repr__(self) -> str:
        return f"Instance({self.flag!r})"


def check_flag(flag: Any) -> str:
    """A flag of an instance, or ConfigError."""
    if not isinstance(flag, str) or not flag.strip() or not is_text(flag) or "\x00" in flag:
        raise ConfigError(f"the flag of an instance must be a text, got {flag!r:.80}")
    if len(flag) > MAX_FLAG:
        raise ConfigError(f"a flag has at most {MAX_FLAG} characters, got {len(flag)}: {flag!r}")
    return flag


class _Fixed:
    """A seat that never moves."""

    settled = True

    def __init__(self, where: Slice, tells: Mapping[str, Any]) -> None:
        self._where = where
        self._tells = tells

    def start(self) -> None:
        """Nothing to renew."""

    def leave(self) -> None:
        """Nothing to release."""

    def stop(self, seconds: float) -> None:
        """Nothing runs."""

    def slice(self) -> Slice:
        return self._where

    def reach(self) -> Slice:
        return self._where

    def go_round(self) -> None:
        """It always looks at all of it."""

    def looked(self, *, complete: bool, rest: float | None = None) -> None:
        """Always the same."""

    def tells(self) -> Mapping[str, Any]:
        return self._tells
