"""What pyproject.toml allows: the lower bounds of all requirements, and the Pythons."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOT_OURS = ("cx-oracle",)
"""Extras without a lower bound: a driver with one version only."""
TOOLS = (
    "hypothesis",
    "httpx",
    "httpx2",
    "jinja2",
    "opentelemetry-sdk",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "starlette",
)
"""Of the group test: what the contract suite itself imports."""
_LOWER = re.compile(r"([\w.-]+)(\[[\w,-]+\])?>=([\w.]+)")


def _declared(part: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())[part]
    return found


def project() -> dict[str, Any]:
    return _declared("project")


def group(name: str) -> list[str]:
    """The requirements of a dependency group, with those of the groups that it includes."""
    found = []
    for one in _declared("dependency-groups")[name]:
        found += [one] if isinstance(one, str) else group(one["include-group"])
    return found


def users() -> list[str]:
    """The requirements of the package and of its extras, those for its users."""
    told = project()
    extras = told["optional-dependencies"].items()
    named = [one for extra, some in extras if extra not in NOT_OURS for one in some]
    return sorted({*told["dependencies"], *named})


def lowest(requirement: str) -> tuple[str, str]:
    """A requirement's name, with its extras, and its lower bound; ValueError without one."""
    found = _LOWER.match(requirement)
    if found is None:
        raise ValueError(f"{requirement} has no lower bound")
    return found[1] + (found[2] or ""), found[3]


def oldest() -> list[str]:
    """All lower bounds at once, as exact requirements."""
    return [f"{name}=={version}" for name, version in map(lowest, users())]


def tools() -> list[str]:
    """The requirements of the contract suite itself, as the group test has them."""
    return [one for one in group("test") if re.split(r"[<>=]", one)[0] in TOOLS]


def pythons() -> list[str]:
    """The versions that the classifiers name."""
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(project()["classifiers"]))
    return sorted(found, key=lambda one: int(one[2:]))


if __name__ == "__main__":  # for the Makefile, since pip reads groups from version 25.1 on
    print(shlex.join(one for name in sys.argv[1:] for one in group(name)))
