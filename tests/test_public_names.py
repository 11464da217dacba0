"""The public names: exact, importable, typed."""

from __future__ import annotations

import importlib
import types
from importlib import resources

import msgworker

PUBLIC = {
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
}


def test_all_is_exact():
    assert set(msgworker.__all__) == PUBLIC
    assert list(msgworker.__all__) == sorted(msgworker.__all__)
    assert len(set(msgworker.__all__)) == len(msgworker.__all__)


def test_all_names_can_be_imported():
    module = importlib.import_module("msgworker")
    for name in PUBLIC:
        assert getattr(module, name) is not None


def test_nothing_else_is_public():
    modules = {n for n, v in vars(msgworker).items() if isinstance(v, types.ModuleType)}
    found = {name for name in vars(msgworker) if not name.startswith("_")} - modules
    assert found == PUBLIC - {"__version__"}


def test_public_names_have_a_docstring():
    for name in PUBLIC - {"__version__"}:
        assert getattr(msgworker, name).__doc__, name


def test_the_package_says_that_it_is_typed():
    assert resources.files("msgworker").joinpath("py.typed").is_file()


def test_every_error_is_rooted_at_msgworker_error():
    for name in PUBLIC:
        found = getattr(msgworker, name)
        wish = name in ("Reject", "RetryLater")
        if isinstance(found, type) and issubclass(found, Exception) and not wish:
            assert issubclass(found, msgworker.MsgworkerError), name


def test_exit_codes():
    codes = {"ConfigError": 2, "HandlerError": 2, "DatabaseUnavailable": 3, "SchemaError": 4}
    assert {name: getattr(msgworker, name).exit_code for name in codes} == codes
