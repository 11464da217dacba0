"""The whole error tree.

MsgworkerError
+-- ConfigError (ValueError)     a setting or argument is wrong; nothing was done        exit 2
|   +-- HandlerError             a handler cannot be registered or cannot be called
+-- DatabaseUnavailable          the database cannot be reached or denies access        exit 3
|   +-- LocksUnavailable         a lock centre cannot be reached or denies access
+-- SchemaError                  a table, column or index is missing or of a wrong kind  exit 4
+-- PayloadError (ValueError)    a payload is not JSON, too large or not of its type
+-- RuleChanged                  max_tries or on_dead of the table changed meanwhile      exit 75
+-- LostClaim                    a message in our hands was recovered, edited or deleted
+-- LeaseBusy                    a lock is held by somebody else
+-- LeaseLost                    a lock that we held ran out, was taken away, or is in doubt
+-- HandlerMisuse                a handler ended our transaction or returned what it may not
+-- HandlerTimeout               a handler ran longer than its `timeout`
|   +-- HandlerStuck             ... and its instance left because of it: end the process  exit 75
+-- ItemsFailed                  some items of a fan-out failed; the others are done and recorded

Reject and RetryLater are not errors but wishes of a handler: raise or return them.
Losing a race is never an error: functions return what was won.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

RETRY_LATER_MAX_SECONDS = 30 * 86_400.0


class ExitCode(enum.IntEnum):
    """How the command line ends; `means` is what its --help and docs/cli.md say."""

    means: str

    def __new__(cls, value: int, means: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.means = means
        return code

    OK = 0, "ok"
    REFUSED = (
        1,
        "some messages became dead, or nobody does what is left; or another refusal, which a line "
        "on stderr explains",
    )
    USAGE = 2, "the command line or the configuration is wrong; nothing was done"
    UNREACHABLE = 3, "the database cannot be reached, denies access, or was lost on the way"
    SCHEMA = 4, "a table, column or index is missing or of a wrong kind: see init-db"
    NOTHING_MATCHED = 5, "nothing matched; or a write left some of the given ids alone"
    RETRIES = (
        6,
        "messages wait for their retry, or for the lease of a silent instance to end: run again",
    )
    OUR_FAULT = 70, "an error of msgworker itself; please report it with the output of --debug"
    OUTPUT = (
        74,
        "stdout is closed or cannot be written, on a full disk say; what the command did is done",
    )
    STUCK = (
        75,
        "the process must be started anew: a handler with timeout_action=restart hangs, or "
        "max_tries or on_dead of the table was changed meanwhile",
    )
    INTERRUPTED = 130, "interrupted at a question or in a short command"


class MsgworkerError(Exception):
    """Root of every error this library raises on its own account."""

    exit_code = ExitCode.REFUSED


class ConfigError(MsgworkerError, ValueError):
    """A setting or argument is wrong; raised before anything was done."""

    exit_code = ExitCode.USAGE


class HandlerError(ConfigError):
    """A handler cannot be registered: not callable, wrong signature, topic taken."""


class DatabaseUnavailable(MsgworkerError):
    """The database cannot be reached, denies access, or is not a database."""

    exit_code = ExitCode.UNREACHABLE


class LocksUnavailable(DatabaseUnavailable):
    """A lock centre cannot be reached, denies access, or does not answer."""


class SchemaError(MsgworkerError):
    """The live schema lacks something; the text says what and how to mend it."""

    exit_code = ExitCode.SCHEMA


class PayloadError(MsgworkerError, ValueError):
    """A payload is not JSON, too large, too deep or not of the handler's type."""


class RuleChanged(MsgworkerError):
    """The rule of the table was changed since it was read; nothing was done by the old one.

    What is started again, or called again, goes by the new one.
    """

    exit_code = ExitCode.STUCK

    def __init__(self, table: str, before: str, now: str) -> None:
        super().__init__(
            f"the rule of table {table} was changed from {before} to {now} meanwhile; nothing was "
            "done by the old one: start this again"
        )


class LostClaim(MsgworkerError):
    """The flag of a message was no longer ours when its outcome was to be written."""

    def __init__(self, msg_id: object, instance_id: str) -> None:
        super().__init__(
            f"message {msg_id} is no longer claimed by {instance_id}: it was recovered, edited or "
            "deleted meanwhile; its outcome was not written"
        )
        self.msg_id = msg_id
        self.instance_id = instance_id


class LeaseBusy(MsgworkerError):
    """A lock is held by somebody else; nothing was waited for, or not for long enough.

    name: the lock. owner: who held it when that was asked, None if nobody knows.
    """

    def __init__(self, name: str, owner: str | None = None, waited: float = 0.0) -> None:
        whom = "somebody else" if owner is None else owner
        after = f", waited {waited:.1f} s" if waited else ""
        super().__init__(f"lock {name!r} is held by {whom}{after}; see `msgworker locks`")
        self.name = name
        self.owner = owner


class LeaseLost(MsgworkerError):
    """A lock is not held any more, or may not be: what is done under it must stop.

    name, owner, token: of the lease that was lost. why: in words.
    """

    def __init__(self, name: str, owner: str, token: int, why: str) -> None:
        super().__init__(
            f"lock {name!r} is lost to {owner} (token {token}): {why}. Somebody else may hold it; "
            "writes that carry the token are refused where the token is checked"
        )
        self.name = name
        self.owner = owner
        self.token = token
        self.why = why


class HandlerMisuse(MsgworkerError):
    """A handler did what it may not, such as committing `ctx.connection` itself."""


class HandlerTimeout(MsgworkerError):
    """A handler ran longer than its `timeout`."""


class HandlerStuck(HandlerTimeout):
    """A handler with `timeout_action="restart"` did not end; the instance has left, only the end of
    the process ends the handler. Its message is recovered by others, with a crash counted."""

    exit_code = ExitCode.STUCK


class ItemsFailed(MsgworkerError):
    """Items of a fan-out failed: the first ones with their errors, and how many in all.

    failed: key -> error text, of the first ones. count: how many failed. total: of how many.
    held_back: items that were not run because one before them in their order failed.
    """

    SHOWN = 5

    def __init__(
        self, failed: Mapping[Any, str], *, count: int, total: int, held_back: int = 0
    ) -> None:
        shown = [f"{key!r:.60}: {text:.250}" for key, text in islice(failed.items(), self.SHOWN)]
        if count > len(shown):
            shown.append(f"and {count - len(shown)} more")
        behind = f" ({held_back} held back behind them)" if held_back else ""
        super().__init__(f"{count} of {total} items failed{behind}: {'; '.join(shown)}")
        self.failed = dict(failed)
        self.count = count
        self.total = total
        self.held_back = held_back


class Reject(Exception):
    """A handler's wish: this message is dead at once, no more tries.

    `Reject("no such customer")` is raised or returned; the reason is kept in `last_error`.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """A handler's wish: come back later; not counted as a failed try.

    after: seconds or a timedelta, 0 to 30 days. A message may ask for it `later_limit` times (see
    MessageTable); after that each wish counts as a failed try.
    Raises ConfigError for a delay that is negative, not finite or too long (the try then fails).
    """

    def __init__(self, after: float | timedelta = 60.0, reason: str = "") -> None:
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ConfigError(f"RetryLater(after=...) takes seconds or a timedelta, got {after!r}")
        if not math.isfinite(seconds) or not 0 <= seconds <= RETRY_LATER_MAX_SECONDS:
            raise ConfigError(
                f"RetryLater(after=...) must be 0 to {RETRY_LATER_MAX_SECONDS:.0f} seconds, "
                f"got {after!r}"
            )
        super().__init__(reason or f"again in {seconds:g} s")
        self.after_seconds = float(seconds)
        self.reason = reason
