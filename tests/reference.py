"""Write docs/reference.md from the docstrings: `python -m tests.reference > docs/reference.md`."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import msgworker
from msgworker import errors, events, testing
from msgworker.config import Settings
from msgworker.coordination import (
    DatabaseLocks,
    Lease,
    LockCentre,
    RedisLocks,
    ZooKeeperLocks,
    hold,
)
from msgworker.instance.working import Working
from msgworker.ops import Ops
from msgworker.ops.results import Repaired
from msgworker.store.changing.audit import Operation
from msgworker.store.changing.pause import Pause
from msgworker.store.looking.audited import AuditEntry
from msgworker.store.looking.counts import Count
from msgworker.store.looking.doctor import Finding
from msgworker.store.looking.explain import Explanation
from msgworker.store.looking.failures import Failures
from msgworker.store.looking.info import MessageInfo
from msgworker.store.looking.instances import InstanceInfo
from msgworker.store.looking.waiting import LaneInfo
from msgworker.store.looking.window import Found
from msgworker.store.settling.tries import Try
from tests import keywords

SECTIONS: dict[str, tuple[str, list[type]]] = {
    "Application": (
        "All that is here can be imported from `msgworker`.",
        [
            msgworker.App,
            msgworker.MessageTable,
            msgworker.Message,
            msgworker.Context,
            msgworker.BatchContext,
            msgworker.FanOut,
            msgworker.Worker,
            msgworker.Report,
            msgworker.Databases,
            msgworker.Workers,
            msgworker.Reports,
        ],
    ),
    "Events": (
        "In `msgworker.events`; `App.on` subscribes to them.",
        [events.Event, events.Facts, *events.EVENTS.values()],
    ),
    "Settings": ("Keywords of `App`; see [configuration](configuration.md) too.", [Settings]),
    "Looking and repairing": ("`app.ops` is an `Ops`.", [Ops]),
    "What `app.ops` returns": (
        "",
        [
            Found,
            MessageInfo,
            Try,
            Count,
            Explanation,
            Failures,
            LaneInfo,
            InstanceInfo,
            Finding,
            Repaired,
            Operation,
            AuditEntry,
            Pause,
        ],
    ),
    "Coordination": (
        "In `msgworker.coordination`; what it is for: [locks](coordination.md).",
        [Lease, LockCentre, DatabaseLocks, RedisLocks, ZooKeeperLocks],
    ),
}
LINE = 90
HEAD = """\
# Python API

Made from the docstrings by `make reference`. From a wish to a call: [how do I](how-do-i.md).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, (about, kinds) in SECTIONS.items():
        parts.append(f"## {title}\n")
        if about:
            parts.append(f"{about}\n")
        for kind in kinds:
            parts.extend(_class(kind))
    parts.append(f"### hold\n\n{_signature('hold', hold)}\n{_text(hold)}\n")
    parts.append("## Errors\n")
    parts.append(f"```\n{inspect.cleandoc(errors.__doc__ or '')}\n```\n")
    for name in msgworker.__all__:
        found = getattr(msgworker, name)
        if isinstance(found, type) and issubclass(found, Exception):
            parts.append(f"### {name}\n\n{_text(found)}\n")
    parts.append("## Tests of handlers: `msgworker.testing`\n")
    parts.append(f"{_text(testing)}\n")
    parts.append(f"### drain\n\n{_signature('drain', testing.drain)}\n{_text(testing.drain)}\n")
    for kind in (testing.Database, testing.Clock, testing.Crashed):
        parts.extend(_class(kind))
    return "\n".join(parts)


def _class(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}\n"
    if signature := _signature(kind.__name__, kind):
        yield signature
    yield f"{_text(kind)}\n"
    if kind is Settings:
        for name, text in keywords.texts().items():
            yield f"#### {name}\n\n{_marked(text)}\n"
    if values := _fields(kind):
        yield f"```python\n{values}\n```\n"
    if kind is msgworker.MessageTable:  # the rest of it is for the library itself
        return
    for name, member in _members(kind):
        yield f"#### {kind.__name__}.{name}\n"
        if not isinstance(member, property):
            yield _signature(name, getattr(kind, name))
        yield f"{_text(member)}\n"


def _fields(kind: type) -> str:
    """The fields of a value, one in a line; "" for what is made by a call."""
    if dataclasses.is_dataclass(kind) and kind not in (Settings, msgworker.MessageTable):
        return "\n".join(f"{f.name}: {f.type}" for f in dataclasses.fields(kind) if f.repr)
    names = getattr(kind, "_fields", ())
    return "\n".join(f"{name}: {kind.__annotations__[name]}" for name in names)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, our own bases included, as they stand."""
    seen = set()
    for base in reversed([b for b in kind.__mro__ if b.__module__.startswith("msgworker")]):
        for name, member in vars(base).items():
            bare = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if name.startswith("_") or name in seen or not getattr(bare, "__doc__", None):
                continue
            if base is Working:  # its classes say more
                continue
            if isinstance(bare, property) or inspect.isfunction(bare):
                seen.add(name)
                own = inspect.getattr_static(kind, name)
                yield name, own if inspect.getdoc(own) and own.__doc__ else member


class _Said:
    """An annotation as it stands in the source."""

    def __init__(self, text: object) -> None:
        self._text = text

    def __repr__(self) -> str:
        return str(self._text)


def _signature(name: str, what: Any) -> str:
    """A call as a block of code, on several lines where it is long; "" for what is no call."""
    if isinstance(what, type):
        if issubclass(what, enum.Enum | BaseException):
            return ""
        if dataclasses.is_dataclass(what) and what not in (Settings, msgworker.MessageTable):
            return ""
    whole = inspect.signature(what)
    given = [
        p if p.annotation is p.empty else p.replace(annotation=_Said(p.annotation))
        for p in whole.parameters.values()
        if p.name != "self"
    ]
    back = whole.return_annotation
    none = back in (whole.empty, None, "None") or isinstance(what, type)
    end = "" if none else f" -> {back}"
    line = f"{name}{whole.replace(parameters=given, return_annotation=whole.empty)}{end}"
    if len(line) > LINE:
        marks = _with_marks(given)
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in marks) + f"){end}"
    return f"```python\n{line}\n```\n"


def _with_marks(given: list[inspect.Parameter]) -> Iterator[str]:
    """The parameters, with the star before those that are keywords only."""
    before = None
    for one in given:
        keyword = one.kind is one.KEYWORD_ONLY
        if keyword and before not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            yield "*"
        before = one.kind
        yield str(one)


def _text(what: Any) -> str:
    """A docstring as Markdown: what looks like markup in it, but is none, is written out."""
    return _marked(inspect.cleandoc(what.__doc__ or ""))


def _marked(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("    "):
            parts = re.split(r"(`[^`]*`)", line)
            parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
            line = "".join(parts)
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
