"""The whole error tree.

MsgworkerError
+-- ConfigError (ValueError)     a setting or argument is wrong; nothing was done        exit 2
|   +-- HandlerError             a handler cannot be registered or cannot be called
+-- DatabaseUnavailable          the database cannot be reached or denies access        exit 3
|   +-- LocksUnavailable         a lock centre cannot be reached or denies access
+-- SchemaError                  a table, column or index is missing or of a wrong kind  exit 4
+-- PayloadError (ValueError)    a payload is not JSON, too large or not of its type
+-- DuplicateMessage             the unique key of a message that was sent is taken
+-- JobSealed                    a message was sent into a job that takes no more
+-- KeyUsed                      a write with the key of this request is recorded already
+-- TookTooLong                  a read took longer than the time that it was given
+-- SelectionChanged             a write would not change as many messages as were expected
+-- RuleChanged                  max_tries or on_dead of the table changed meanwhile      exit 75
+-- LostClaim                    a message of this instance was recovered, edited or deleted
+-- LeaseBusy                    a lock is held by another owner
+-- LeaseLost                    a held lock expired, was taken away, or may have expired
+-- HandlerMisuse                a handler ended our transaction or returned a forbidden value
+-- HandlerTimeout               a handler ran longer than its `timeout`
|   +-- HandlerStuck             ... and its instance left because of that: end the process exit 75
+-- ItemsFailed                  some items of a fan-out failed; the others are done and recorded

Reject and RetryLater are requests of a handler, not errors: raise or return them.
Losing a race is never an error: functions return the rows that they won.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from msgworker.commands import proposed
from msgworker.counted import plural

RETRY_LATER_SECONDS = 60.0
RETRY_LATER_MAX_SECONDS = 30 * 86_400.0


class ExitCode(enum.IntEnum):
    """Exit codes of the command line; `means` is their text in --help and docs/reference/cli.md."""

    means: str

    def __new__(cls, value: int, means: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.means = means
        return code

    OK = 0, "ok"
    REFUSED = (
        1,
        "some messages became dead, or messages are left that no instance will handle; or the "
        "command was refused, with the reason on stderr",
    )
    USAGE = 2, "the command line or the configuration is wrong; nothing was done"
    UNREACHABLE = 3, "the database cannot be reached, denies access, or was lost during the command"
    SCHEMA = 4, "a table, column or index is missing or of a wrong kind: see init-db"
    NOTHING_MATCHED = 5, "nothing matched; or a write skipped some of the given ids"
    RETRIES = (
        6,
        "messages wait for their retry, a limit, others of their object that are not of the job, "
        "or the lease of a silent instance to end: run again; or a watch has reached --time-limit",
    )
    OUR_FAULT = 70, "an error of msgworker itself; please report it with the output of --debug"
    OUTPUT = (
        74,
        "stdout is closed or cannot be written, for example on a full disk; the command has done "
        "its work",
    )
    STUCK = (
        75,
        "the process must be restarted: a handler with timeout_action=restart hangs, or "
        "max_tries or on_dead of the table was changed meanwhile",
    )
    INTERRUPTED = 130, "interrupted at a question or in a short command"


class MsgworkerError(Exception):
    """Base class of all errors of this library."""

    exit_code = ExitCode.REFUSED

    def __str__(self) -> str:
        return proposed(super().__str__())


class ConfigError(MsgworkerError, ValueError):
    """A setting or argument is wrong; raised before anything was done."""

    exit_code = ExitCode.USAGE


class HandlerError(ConfigError):
    """A handler cannot be registered: not callable, wrong signature, topic taken, a circle of
    `on_done` and `on_dead`. A circle by the handler of every topic: at the start of a worker."""


class DatabaseUnavailable(MsgworkerError):
    """The database cannot be reached, denies access, or is not a database."""

    exit_code = ExitCode.UNREACHABLE


class LocksUnavailable(DatabaseUnavailable):
    """A lock centre cannot be reached, denies access, or does not answer."""


class SchemaError(MsgworkerError):
    """The live schema lacks something; the text says what, and how to fix it."""

    exit_code = ExitCode.SCHEMA


class PayloadError(MsgworkerError, ValueError):
    """A payload is not JSON, too large, too deep or not of the handler's type."""


class DuplicateMessage(MsgworkerError):
    """A message was not sent: another one holds its unique key. The transaction is unharmed.

    msg_id: the one that holds it, None if it cannot be seen. unique_key: the key. sent: how many
    messages before it the same `send_many` has sent, in the transaction.
    """

    def __init__(self, msg_id: Any, unique_key: str, why: str = "", *, sent: int = 0) -> None:
        whose = "another message" if msg_id is None else f"message {msg_id}"
        told = why or ("it was not sent" if sent else "nothing was sent")
        if sent:
            told += f"; of this send_many, {sent} before it are in the transaction, none behind it"
        super().__init__(f"the unique key {unique_key!r} is held by {whose}: {told}")
        self.msg_id = msg_id
        self.unique_key = unique_key
        self.sent = sent
        self._why = why

    def behind(self, sent: int) -> DuplicateMessage:
        """The same, where so many messages were sent before."""
        return DuplicateMessage(self.msg_id, self.unique_key, self._why, sent=sent)


class JobSealed(MsgworkerError):
    """A message was not sent: its job is sealed, so that it can complete. The transaction is
    unharmed.

    job_id, name: of the job.
    """

    def __init__(self, job_id: int, name: str) -> None:
        super().__init__(
            f"job {job_id} ({name}) is sealed: nothing was sent. Send before it is sealed, or from "
            "a handler of one of its messages: ctx.send(..., job=True)"
        )
        self.job_id = job_id
        self.name = name


class KeyUsed(MsgworkerError):
    """A write was not done: another one is recorded with its key; see `app.ops.recorded`."""


class TookTooLong(MsgworkerError):
    """A read was ended because it took longer than the time of `ops.within`, or, of a rerun of one
    message, than 10 s.

    seconds: that time.
    """

    def __init__(self, seconds: float, advice: str | None = None) -> None:
        advice = advice or (
            "ask for less (a narrower filter, fewer rows), or again when the database is less busy"
        )
        super().__init__(
            f"the database had not answered after {seconds:g} s, so the read was ended; {advice}"
        )
        self.seconds = seconds


class SelectionChanged(MsgworkerError):
    """A write would not change as many messages as the caller expected; nothing was changed.

    expected: the number that was given. found: how many messages it would change now; more than
    expected means at least so many, because it does not count further.
    """

    def __init__(self, kind: str, expected: int, found: int) -> None:
        now = f"at least {found:,}" if found > expected else f"{found:,}"
        super().__init__(
            f"{kind} was to change {plural(expected, 'message')}, but would change {now} "
            "now: the selection has changed since it was counted, and nothing was done. Count "
            "again (a dry run), then give that number"
        )
        self.expected = expected
        self.found = found


class RuleChanged(MsgworkerError):
    """The rule of the table was changed since it was read; nothing was done under the old one.

    Start the instance, or call the function, again: it then uses the new rule.
    """

    exit_code = ExitCode.STUCK

    def __init__(self, table: str, before: str, now: str) -> None:
        super().__init__(
            f"the rule of table {table} was changed from {before} to {now} meanwhile; nothing was "
            "done under the old one: start this again"
        )


class LostClaim(MsgworkerError):
    """A message was no longer flagged by this instance when its outcome was to be written."""

    def __init__(self, msg_id: object, instance_id: str) -> None:
        super().__init__(
            f"message {msg_id} is no longer claimed by {instance_id}: it was recovered, edited or "
            "deleted meanwhile; its outcome was not written"
        )
        self.msg_id = msg_id
        self.instance_id = instance_id


class LeaseBusy(MsgworkerError):
    """A lock is held by another owner, and stayed so for the time of `wait`.

    name: the lock. owner: its holder at that time, None if unknown. see: the command that lists it.
    """

    def __init__(
        self,
        name: str,
        owner: str | None = None,
        waited: float = 0.0,
        *,
        see: str = "`msgworker locks`",
    ) -> None:
        whom = "another owner" if owner is None else owner
        after = f", waited {waited:.1f} s" if waited else ""
        super().__init__(f"lock {name!r} is held by {whom}{after}; see {see}")
        self.name = name
        self.owner = owner


class LeaseLost(MsgworkerError):
    """A lock is no longer held, or may not be: stop the work that it protects.

    name, owner, token: of the lost lease. why: a text.
    """

    def __init__(self, name: str, owner: str, token: int, why: str) -> None:
        super().__init__(
            f"lock {name!r} is lost to {owner} (token {token}): {why}. Another owner may hold it; "
            "writes with this token are refused where the token is checked"
        )
        self.name = name
        self.owner = owner
        self.token = token
        self.why = why


class HandlerMisuse(MsgworkerError):
    """A handler did something forbidden, such as committing `ctx.connection` itself."""


class HandlerTimeout(MsgworkerError):
    """A handler ran longer than its `timeout`."""


class HandlerStuck(HandlerTimeout):
    """A handler with `timeout_action="restart"` did not end, so the instance has left. Only the end
    of the process ends the handler. Another instance recovers its message and counts a crash."""

    exit_code = ExitCode.STUCK


class ItemsFailed(MsgworkerError):
    """Items of a fan-out failed: the first ones with their errors, and how many in all.

    failed: key -> error text, of the first ones. count: how many failed. total: of how many.
    held_back: items that did not run because an earlier item of their sub-key failed.
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
    """A handler's request: this message becomes dead at once, without more tries.

    `Reject("no such customer")` is raised or returned; the reason is kept in `last_error`.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """A handler's request: call me again later; not counted as a failed try.

    after: seconds or a timedelta, 0 to 30 days. A message may be postponed `later_limit` times (see
    MessageTable); after that each request counts as a failed try.
    Raises ConfigError for a delay that is negative, not finite or too long (the try then fails).
    """

    def __init__(self, after: float | timedelta = RETRY_LATER_SECONDS, reason: str = "") -> None:
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
