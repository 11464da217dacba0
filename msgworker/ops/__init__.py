"""Reads and repairs for operators; the CLI calls them."""

from __future__ import annotations

from msgworker.ops.cancels import Cancels
from msgworker.ops.locking import Locking
from msgworker.ops.looks import Looks
from msgworker.ops.repairs import Repairs
from msgworker.ops.scheduling import Scheduling
from msgworker.ops.upkeep import Upkeep

__all__ = ["Ops"]


class Ops(Looks, Repairs, Cancels, Upkeep, Scheduling, Locking):
    """Reads and repairs for operators, in short transactions."""
