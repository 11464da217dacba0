"""The place of an error in the user's code, and its traceback for operators.

Users can change only their own code. So the place of an error is their innermost frame,
and a traceback shows their frames and only counts those of libraries. Nothing in here
fails, whatever the error is.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from msgworker.counted import plural
from msgworker.payload import clean

MAX_TRACE = 8000
"""Bytes of a traceback that are kept with a try."""
MAX_FRAMES = 20_000
CAUSES = 3
MEMBERS = 3
LINE = 200
LEAST_BUDGET = 200
CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"
OURS = os.path.normcase(str(Path(__file__).resolve().parents[2])) + os.sep
SITES = ("site-packages", "dist-packages")
_INNER = ("<locals>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def text_of(value: object) -> str:
    """`str(value)`, whatever that raises."""
    try:
        return str(value)
    except BaseException:
        return "<unprintable>"


# ---------------------------------------------------------------- whose code


@functools.cache
def _stdlib() -> tuple[str, ...]:
    found = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    found.add(os.path.dirname(getattr(os, "__file__", None) or ""))
    paths = {path for one in found if one for path in (one, os.path.realpath(one))}
    return tuple(os.path.normcase(path) + os.sep for path in paths if len(path) > 1)


@functools.lru_cache(4096)
def library_of(file: str) -> str | None:
    """The library that a file of code belongs to: one that is installed, the standard library, this
    package, or code without a file; None if it is the user's own."""
    if file.startswith("<"):
        return file
    path = os.path.normcase(file)
    if path.startswith(OURS):
        return "msgworker"
    parts = path.replace("\\", "/").split("/")
    for place, part in enumerate(parts[:-1]):
        if part in SITES:
            return parts[place + 1].removesuffix(".py")
    for root in _stdlib():
        if path.startswith(root):
            return path[len(root) :].replace("\\", "/").split("/")[0].removesuffix(".py")
    return None


def home_of(fn: Any) -> str | None:
    """The file of a function's code, under decorators and partials; None if it has none."""
    try:
        while isinstance(fn, functools.partial):
            fn = fn.func
        fn = inspect.unwrap(fn)
        called: Any = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
        file = called.__code__.co_filename
    except Exception:
        return None
    return file if isinstance(file, str) else None


def _file(step: TracebackType) -> str:
    return step.tb_frame.f_code.co_filename


def _base(step: TracebackType) -> str:
    return _file(step).replace("\\", "/").split("/")[-1]


def _steps(error: BaseException) -> list[TracebackType]:
    steps: list[TracebackType] = []
    step = error.__traceback__
    while step is not None and len(steps) < MAX_FRAMES:
        steps.append(step)
        step = step.tb_next
    return steps


def _mine(steps: list[TracebackType], home: str | None) -> list[bool]:
    """Which steps are in the user's code. If all code is installed, the package of the user's
    function counts as theirs; if that is unknown, that of the first code that we have called."""
    libraries = [library_of(_file(step)) for step in steps]
    if None in libraries:
        return [one is None for one in libraries]
    if home is None:
        home = next((file for step in steps if _may_be_theirs(file := _file(step))), "")
    package = library_of(home)
    if package in (None, "msgworker") or home.startswith("<"):
        return [_file(step) == home for step in steps]
    return [one == package for one in libraries]


def _may_be_theirs(file: str) -> bool:
    """Whether code of a library may be the user's: installed, or made up by them."""
    if file.startswith("<"):
        return not file.startswith("<frozen")
    path = os.path.normcase(file)
    inside = any(site in path.replace("\\", "/").split("/")[:-1] for site in SITES)
    return inside and not path.startswith(OURS)


def place_of(error: BaseException, home: str | None = None) -> str | None:
    """`file.py:117 in function`: the innermost frame of the user's code; None if there is none.
    home: the file of the user's function that was called."""
    steps = _steps(error)
    for step, is_mine in zip(reversed(steps), reversed(_mine(steps, home)), strict=True):
        if is_mine:
            code = step.tb_frame.f_code
            # Of a comprehension, the function around it.
            outer = [part for part in code.co_qualname.split(".") if part not in _INNER]
            return f"{_base(step)}:{step.tb_lineno} in {outer[-1] if outer else code.co_name}"
    return None


def came_from(error: BaseException, frame: FrameType | None) -> None:
    """Give an error that was not raised a traceback as if it were raised in this frame, without our
    own frames."""
    if error.__traceback__ is not None:
        return
    steps: TracebackType | None = None
    while frame is not None and library_of(frame.f_code.co_filename) != "msgworker":
        steps = TracebackType(steps, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    BaseException.with_traceback(error, steps)


def trim(error: BaseException, home: str | None = None) -> None:
    """Take our own frames off the beginning of an error's traceback: they would form a reference
    cycle with the error."""
    with suppress(BaseException):  # its attributes may be of its own making
        steps = _steps(error)
        mine = _mine(steps, home)
        if True not in mine:
            return
        first = mine.index(True)
        while first and library_of(_file(steps[first - 1])) != "msgworker":
            first -= 1
        BaseException.with_traceback(error, steps[first])


# ---------------------------------------------------------------- text


def trace_of(error: BaseException, home: str | None = None, most: int = MAX_TRACE) -> str | None:
    """The traceback of an error with its causes, at most `most` bytes of UTF-8, the error last. The
    user's frames are whole, the innermost ones first to be kept; frames of libraries are counted.
    None if there is no frame of the user's."""
    try:
        text = _chain(error, home, most)
        return None if text is None else clean(text, most)
    except BaseException:  # an error that cannot be described must not cost the outcome
        return None


def where(error: BaseException, home: str | None = None) -> str | None:
    """Only the user's innermost frame, as a traceback shows it; None if there is none."""
    try:
        steps = _steps(error)
        mine = [step for step, m in zip(steps, _mine(steps, home), strict=True) if m]
        return clean(_frame(mine[-1]), MAX_TRACE) if mine else None
    except BaseException:
        return None


def _chain(error: BaseException, home: str | None, most: int) -> str | None:
    causes = [pair for pair in _causes(error) if not _repeated(*pair, error)]
    if not any(True in _mine(_steps(one), home) for one in (error, *(c for c, _ in causes))):
        return None
    parts: list[str] = []
    for cause, sentence in reversed(causes[:CAUSES]):
        budget = most // (2 * min(len(causes), CAUSES)) - _size(sentence) - 4
        parts += [_block(cause, home, budget), f"\n{sentence}\n"]
    if len(causes) > CAUSES:
        earlier = plural(len(causes) - CAUSES, "earlier cause", "is", "are")
        parts.insert(0, f"({earlier} left out)\n")
    left = most - sum(_size(part) + 1 for part in parts)
    return "\n".join([*parts, _block(error, home, left)])


def _causes(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """What an error came from, the nearest first, with the sentence between the two."""
    seen = {id(error)}
    while True:
        cause, sentence = error.__cause__, CAUSE
        if cause is None and not error.__suppress_context__:
            cause, sentence = error.__context__, CONTEXT
        if cause is None or id(cause) in seen or len(seen) > 100:
            return
        seen.add(id(cause))
        yield cause, sentence
        error = cause


def _repeated(cause: BaseException, _: str, error: BaseException) -> bool:
    """Whether an error says all that its cause does, as a database error of SQLAlchemy does."""
    inside = all(library_of(_file(step)) is not None for step in _steps(cause))
    return inside and text_of(cause) in text_of(error)


def _block(error: BaseException, home: str | None, budget: int) -> str:
    """One error: frames, and what it says at the end."""
    if type(error).__name__ == "_RemoteTraceback":  # of another process, as text
        return _end_of(text_of(error).strip().strip('"').strip(), budget)
    last = _said(error, budget // 3) + _members(error, home, budget // 3)
    head = "Traceback (most recent call last):"
    left = budget - _size(head) - _size(last) - 60
    kept: list[str] = []
    entries = _entries(error, home)
    for entry in reversed(entries):
        left -= _size(entry) + 1
        if left < 0:
            outer = plural(len(entries) - len(kept), "outer frame", "is", "are")
            kept.append(f"  ... {outer} left out")
            break
        kept.append(entry)
    return "\n".join(([head, *reversed(kept)] if kept else []) + [last])


def _said(error: BaseException, budget: int) -> str:
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    said = text_of(error)
    lines = [f"{name}: {said}" if said else name]
    lines += [text_of(note) for note in getattr(error, "__notes__", ())[:3]]
    return clean("\n".join(lines), max(budget, 80))


def _members(error: BaseException, home: str | None, budget: int) -> str:
    """The first errors of a group, nested as deep as `budget` bytes allow."""
    if not isinstance(error, BaseExceptionGroup) or budget < LEAST_BUDGET:
        return ""
    lines: list[str] = []
    for number, one in enumerate(error.exceptions[:MEMBERS], 1):
        lines.append(f"  + {number} of {len(error.exceptions)}")
        lines += [f"  | {line}" for line in _block(one, home, budget // MEMBERS).split("\n")]
    return "".join(f"\n{line}" for line in lines)


def _entries(error: BaseException, home: str | None) -> list[str]:
    """The frames from the user's first one on: theirs whole, runs of others counted."""
    steps = _steps(error)
    mine = _mine(steps, home)
    if True not in mine:
        return []
    entries: list[str] = []
    others: list[TracebackType] = []
    same = 0
    for step, is_mine in zip(steps[mine.index(True) :], mine[mine.index(True) :], strict=True):
        if step.tb_frame.f_code.co_name in _INNER:  # the frame before shows its line
            continue
        if not is_mine:
            others.append(step)
            continue
        entry = _frame(step)
        if not others and entries and entry == entries[-1 - (same > 0)]:
            same += 1
            entries[-1 if same > 1 else len(entries) :] = [f"  ... the same {same:,} times more"]
            continue
        entries += _counted(others)
        others, same = [], 0
        entries.append(entry)
    return entries + _counted(others)


def _frame(step: TracebackType) -> str:
    file = _file(step)
    code = linecache.getline(file, step.tb_lineno, step.tb_frame.f_globals).strip()
    text = f'  File "{file}", line {step.tb_lineno}, in {step.tb_frame.f_code.co_name}'
    return f"{text}\n    {code[:LINE]}" if code else text


def _counted(steps: list[TracebackType]) -> list[str]:
    if not steps:
        return []
    names = list(dict.fromkeys(library_of(_file(step)) or "?" for step in steps))
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    last = steps[-1]
    name, place = last.tb_frame.f_code.co_name, f"{_base(last)}:{last.tb_lineno}"
    return [f"  ... {plural(len(steps), 'frame')} of {shown}, up to {name} ({place})"]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _end_of(text: str, budget: int) -> str:
    lines: list[str] = []
    for line in reversed(text.split("\n")):
        budget -= _size(line) + 1
        if budget < 0:
            break
        lines.append(line)
    return "\n".join(reversed(lines))
