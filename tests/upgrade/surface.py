"""What a program, a script or an alert may rely on, one thing on a line: documented names with
their members and parameters, commands with their options, settings, the API, log events, metrics.

`python -m tests.upgrade.surface > tests/upgrade/surface-0.3.0.txt` keeps that of a release.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

DOCS = Path("docs")
METHODS = ("get", "post", "put", "delete")


def surface() -> set[str]:
    """All of it, of the package and the docs of this folder."""
    return {*_python(), *_commands(), *_api(), *_tables()}


def _python() -> Iterator[str]:
    for page in sorted((DOCS / "reference" / "python").glob("*.md")):
        for path in re.findall(r"auto(?:class|exception|function):: (\S+)", page.read_text()):
            module, _, name = path.rpartition(".")
            found = getattr(importlib.import_module(module), name)
            # msgworker.coordination.LeaseLost and msgworker.events.LeaseLost are two things
            label = f"events.{name}" if module.endswith(".events") else name
            yield label
            yield from (f"{label}({one})" for one in _parameters(found))
            if isinstance(found, type):
                yield from (f"{label}.{one}" for one in _members(found))


def _members(found: type) -> Iterator[str]:
    ours = [one for one in found.__mro__ if one.__module__.startswith("msgworker")]
    for one in ours:
        names = {*vars(one), *vars(one).get("__annotations__", ())}
        for name in sorted(n for n in names if not n.startswith("_")):
            value = getattr(found, name, None)
            yield f"{name} = {value.value}" if isinstance(value, enum.Enum) else name
            yield from (f"{name}({part})" for part in _parameters(value))


def _parameters(found: Any) -> Iterator[str]:
    """The names that may be given, also those of a TypedDict of keywords."""
    if not callable(found) or isinstance(found, enum.Enum):
        return
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return
    for one in parameters:
        if one.kind is not one.VAR_KEYWORD:
            yield from () if one.name == "self" else (one.name,)
            continue
        function = inspect.unwrap(found)
        try:
            kind = typing.get_type_hints(function).get(one.name)
        except (NameError, TypeError):
            kind = function.__globals__.get(str(one.annotation).partition("[")[2].rstrip("]"))
        yield from getattr(next(iter(typing.get_args(kind)), kind), "__annotations__", ())


def _commands() -> Iterator[str]:
    from msgworker.cli import group

    root = next(one for one in vars(group).values() if isinstance(one, click.Group))

    def walk(command: click.Command, path: str) -> Iterator[str]:
        context = click.Context(command)
        for one in command.params:
            yield from (f"{path} {name}" for name in one.opts if name.startswith("-"))
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield f"{path} {name}"
                yield from walk(below, f"{path} {name}")

    yield from walk(root, "$ msgworker")


def _api() -> Iterator[str]:
    api = json.loads((DOCS / "reference" / "openapi.json").read_text())
    for path, calls in api["paths"].items():
        for method, call in calls.items():
            if method in METHODS:
                yield f"{method.upper()} {path}"
                for one in call.get("parameters", ()):
                    yield f"{method.upper()} {path} {one['name']}"
    for name, schema in api["components"]["schemas"].items():
        yield from (f"JSON {name}.{one}" for one in schema.get("properties", ()))
        yield from (f"JSON {name} = {one}" for one in schema.get("enum", ()))


def _tables() -> Iterator[str]:
    """Names in the first column of tables: settings with their variables, events, metrics."""
    setting = r"^\| `(\w+)` \| `(MSGWORKER_\w+)`"
    text = (DOCS / "reference" / "configuration.md").read_text()
    for name, variable in re.findall(setting, text, re.MULTILINE):
        yield f"setting {name}"
        yield f"variable {variable}"
    for page, name in (("logs", r"\w+\.\w+"), ("metrics", r"msgworker_\w+")):
        text = (DOCS / "operate" / f"{page}.md").read_text()
        yield from (f"{page}: {one}" for one in re.findall(rf"^\| `({name})`", text, re.MULTILINE))


if __name__ == "__main__":
    print("\n".join(sorted(surface())))
