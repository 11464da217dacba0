"""Keywords that have a new name: the old one works until 1.0."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[F], F]:
    """The method takes these keywords under their old names too, with a DeprecationWarning.

    names: old = "new". Raises TypeError where both are given.
    """

    def decorate(fn: F) -> F:
        @functools.wraps(fn)
        def call(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                new = names[old]
                if new in given:
                    raise TypeError(f"{fn.__name__}() got both {new} and {old}; give {new}")
                text = f"{fn.__name__}({old}=...) is now {new}=...; {old} goes in 1.0"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                given[new] = given.pop(old)
            return fn(*args, **given)

        return call  # type: ignore[return-value]

    return decorate
