"""The public names: exact, importable, typed."""

from __future__ import annotations

import ast
import importlib
import types
from importlib import resources
from pathlib import Path

import pytest

import msgworker

PUBLIC = {
    *("App", "AsyncBatchContext", "AsyncContext", "BatchContext", "ConfigError", "Context"),
    *("DatabaseUnavailable", "Databases", "DuplicateMessage", "FanOut", "HandlerError"),
    *("HandlerMisuse", "HandlerStuck", "HandlerTimeout", "ItemsFailed", "Job", "JobSealed"),
    *("LostClaim", "Message", "MessageTable", "MsgworkerError", "PayloadError", "Reject"),
    *("Report", "Reports", "RetryLater", "RuleChanged", "SchemaError", "SelectionChanged"),
    *("TookTooLong", "Worker", "Workers", "__version__"),
}


def test_all_is_exact():
    assert set(msgworker.__all__) == PUBLIC
    assert list(msgworker.__all__) == sorted(msgworker.__all__)
    assert len(set(msgworker.__all__)) == len(msgworker.__all__)


def test_all_names_can_be_imported():
    module = importlib.import_module("msgworker")
    for name in PUBLIC:
        assert getattr(module, name) is not None


def test_the_names_that_type_checkers_see_are_the_names_that_there_are():
    tree = ast.parse(Path(msgworker.__file__).read_text())
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(seen) == PUBLIC - {"__version__"}
    for name, module in seen.items():
        assert getattr(msgworker, name) is getattr(importlib.import_module(module), name)


def test_nothing_else_is_public():
    modules = {n for n, v in vars(msgworker).items() if isinstance(v, types.ModuleType)}
    found = {name for name in dir(msgworker) if not name.startswith("_")} - modules
    assert found == PUBLIC - {"__version__"}


APP = {
    *("add_configured", "add_handler", "asend", "asend_many", "create_schema", "cron", "drain"),
    *("engine", "every", "from_config", "handler", "heartbeats", "job", "load", "label", "on"),
    *("ops", "running", "schedules", "send", "send_many", "settings", "table", "tables"),
    *("topics", "upgrade_schema", "wake", "web", "worker"),
}


def test_an_app_shows_its_public_names_alone(tmp_path: Path) -> None:
    app = msgworker.App(f"sqlite:///{tmp_path}/a.db")
    assert {name for name in dir(app) if not name.startswith("_")} == APP


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


def test_a_name_that_goes_warns_and_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="catch LostClaim"):
        assert msgworker.LostLease is msgworker.LostClaim  # type: ignore[attr-defined]
