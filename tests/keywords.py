"""Write msgworker/config/keywords.py from `Settings`: `make keywords`."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields

from msgworker.config import Settings

HEAD = '''\
"""The settings as keywords of `App`, for type checkers and editors.

Made from `Settings` by `make keywords`: change them there.
"""

from __future__ import annotations

from typing import TypedDict


class Keywords(TypedDict, total=False):
    """Settings of an App."""
'''
INDENT = "    "


def texts() -> dict[str, str]:
    """The text below each setting, on one line."""
    (body,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(body, ast.ClassDef)
    found, name = {}, ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign):
            name = ast.unparse(node.target)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = " ".join(str(node.value.value).split())
    return found


def module() -> str:
    """The whole file."""
    return HEAD + "".join(_keywords())


def _keywords() -> Iterator[str]:
    told = texts()
    for one in fields(Settings):
        lines = textwrap.wrap(f'"""{told[one.name]} Default: {one.default}."""', 96)
        yield f"\n{INDENT}{one.name}: {one.type}\n{textwrap.indent(chr(10).join(lines), INDENT)}\n"


if __name__ == "__main__":
    sys.stdout.write(module())
