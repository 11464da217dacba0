"""What pyproject.toml allows: the lower bounds of all requirements, and the Pythons."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOT_OURS = ("dev", "variants", "cx-oracle")
"""Extras that no user of the oldest versions installs: tools of the project, and a driver with one
version only."""
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
"""Of the extra dev: what the contract suite itself imports."""
_LOWER = re.compile(r"([\w.-]+)(\[[\w,-]+\])?>=([\w.]+)")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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
    """The requirements of the suite itself, as the extra dev has them."""
    dev = project()["optional-dependencies"]["dev"]
    return [one for one in dev if re.split(r"[<>=]", one)[0] in TOOLS]


def pythons() -> list[str]:
    """The versions that the classifiers name."""
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(project()["classifiers"]))
    return sorted(found, key=lambda one: int(one[2:]))
