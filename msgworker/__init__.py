"""A relational message table as a reliable, ordered, fast work queue.

A public name is imported when it is first asked for: `msgworker --help`, and a program that only
catches our errors, need no SQLAlchemy.
"""

import importlib
import typing
import warnings

if typing.TYPE_CHECKING:
    from msgworker.app import App
    from msgworker.databases import Databases
    from msgworker.errors import (
        ConfigError,
        DatabaseUnavailable,
        DuplicateMessage,
        HandlerError,
        HandlerMisuse,
        HandlerStuck,
        HandlerTimeout,
        ItemsFailed,
        JobSealed,
        LostClaim,
        MsgworkerError,
        PayloadError,
        Reject,
        RetryLater,
        RuleChanged,
        SchemaError,
        SelectionChanged,
        TookTooLong,
    )
    from msgworker.instance.running.context import BatchContext, Context, FanOut
    from msgworker.instance.running.transactions import AsyncBatchContext, AsyncContext
    from msgworker.instance.worker import Report, Worker
    from msgworker.message import Message
    from msgworker.producing import Job
    from msgworker.table.spec import MessageTable
    from msgworker.workers import Reports, Workers

__version__ = "0.3.0.dev0"

__all__ = [
    "App",
    "AsyncBatchContext",
    "AsyncContext",
    "BatchContext",
    "ConfigError",
    "Context",
    "DatabaseUnavailable",
    "Databases",
    "DuplicateMessage",
    "FanOut",
    "HandlerError",
    "HandlerMisuse",
    "HandlerStuck",
    "HandlerTimeout",
    "ItemsFailed",
    "Job",
    "JobSealed",
    "LostClaim",
    "Message",
    "MessageTable",
    "MsgworkerError",
    "PayloadError",
    "Reject",
    "Report",
    "Reports",
    "RetryLater",
    "RuleChanged",
    "SchemaError",
    "SelectionChanged",
    "TookTooLong",
    "Worker",
    "Workers",
    "__version__",
]

_HOMES = {
    "App": "app",
    "AsyncBatchContext": "instance.running.transactions",
    "AsyncContext": "instance.running.transactions",
    "BatchContext": "instance.running.context",
    "Context": "instance.running.context",
    "Databases": "databases",
    "FanOut": "instance.running.context",
    "Job": "producing",
    "Message": "message",
    "MessageTable": "table.spec",
    "Report": "instance.worker",
    "Reports": "workers",
    "Worker": "instance.worker",
    "Workers": "workers",
}
"""The modules of the public names; all others are errors."""


def __getattr__(name: str) -> typing.Any:
    if name == "LostLease":
        text = "msgworker.LostLease was never raised and goes in 1.0: catch LostClaim"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        name = "LostClaim"
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    found = globals()[name] = getattr(home, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
