"""A clock that a test moves on."""

from __future__ import annotations


class Ticking:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
