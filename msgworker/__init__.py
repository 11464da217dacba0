"""A relational message table as a reliable, ordered, fast work queue."""

from msgworker.app import App
from msgworker.databases import Databases
from msgworker.errors import (
    ConfigError,
    DatabaseUnavailable,
    HandlerError,
    HandlerMisuse,
    HandlerStuck,
    HandlerTimeout,
    ItemsFailed,
    LostClaim,
    LostLease,
    MsgworkerError,
    PayloadError,
    Reject,
    RetryLater,
    RuleChanged,
    SchemaError,
)
from msgworker.instance.fanout import FanOut
from msgworker.instance.handling import Context
from msgworker.instance.report import Report
from msgworker.instance.worker import Worker
from msgworker.message import Message
from msgworker.table import MessageTable
from msgworker.workers import Reports, Workers

__version__ = "0.1.0"

__all__ = [
    "App",
    "ConfigError",
    "Context",
    "DatabaseUnavailable",
    "Databases",
    "FanOut",
    "HandlerError",
    "HandlerMisuse",
    "HandlerStuck",
    "HandlerTimeout",
    "ItemsFailed",
    "LostClaim",
    "LostLease",
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
    "Worker",
    "Workers",
    "__version__",
]
