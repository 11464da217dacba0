"""Reads and repairs for operators; the CLI calls them."""

from __future__ import annotations

from msgworker.ops.edits import Edits
from msgworker.ops.records import Jobs, Locking, Scheduling
from msgworker.ops.upkeep import Upkeep

__all__ = ["Ops"]


class Ops(Jobs, Edits, Upkeep, Scheduling, Locking):
    """Reads and repairs for operators, in short transactions."""
