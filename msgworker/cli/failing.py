"""Turns an exception into one line of text and an exit code: `errors.ExitCode`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from msgworker.errors import ExitCode, MsgworkerError, PayloadError

if TYPE_CHECKING:
    import sqlalchemy as sa

USAGE = ExitCode.USAGE
NOTHING_MATCHED = ExitCode.NOTHING_MATCHED
OUR_FAULT = ExitCode.OUR_FAULT


class NothingMatched(click.ClickException):
    """Nothing matches the request; nothing was changed."""

    exit_code = NOTHING_MATCHED


class Declined(click.ClickException):
    """A confirmation was answered with no; nothing was changed."""

    exit_code = ExitCode.REFUSED


class Usage(click.ClickException):
    """The command line is wrong."""

    exit_code = USAGE


def exit_code_of(error: BaseException, engine: sa.Engine | None = None) -> int:
    """The exit code that an error ends the program with."""
    error = _ours(error, engine)
    if isinstance(error, PayloadError):
        return USAGE
    if isinstance(error, click.ClickException | MsgworkerError):
        return error.exit_code
    return OUR_FAULT


def sentence(error: BaseException, engine: sa.Engine | None = None, debug: bool = False) -> str:
    """What, where and how to fix it, in one line."""
    error = _ours(error, engine)
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "msgworker"
        return f"{error.format_message()} See `{path} --help`"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, MsgworkerError):
        return str(error)
    how = "" if debug else "; run it again with --debug for the traceback"
    return f"unexpected error: {type(error).__name__}: {error}{how}"


def _ours(error: BaseException, engine: sa.Engine | None) -> BaseException:
    if engine is None:
        return error
    from sqlalchemy.exc import DBAPIError, TimeoutError

    from msgworker import dialects

    known = isinstance(error, DBAPIError | TimeoutError)
    return dialects.refusal(engine, error) if known else error
