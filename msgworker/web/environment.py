"""The templates, and what all of them may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

from msgworker.web import shown

HERE = Path(__file__).parent


def environment(without: Callable[[str], str]) -> jinja2.Environment:
    """The templates. without: takes the secrets out of a text; the filter `scrub`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(shown.FILTERS)
    made.filters["scrub"] = lambda value: "" if value is None else without(str(value))
    made.filters["safe"] = _no_safe
    return made


def _no_safe(_: Any) -> str:
    raise TypeError("nothing is safe: a page escapes all it shows; make markup in charts.py")
