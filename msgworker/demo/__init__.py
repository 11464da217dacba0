"""Real purchases, the rules of a contract discount, and the demonstration that runs on them."""

from __future__ import annotations

import typing
import warnings


def __getattr__(name: str) -> typing.Any:
    if name != "discount":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = "msgworker.demo.discount is now msgworker.demo.purchases; the old name goes in 1.0"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    from msgworker.demo import purchases

    return purchases
