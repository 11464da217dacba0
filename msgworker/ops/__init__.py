"""What people may do with a message table; the CLI and the web page both call it."""

from __future__ import annotations

from msgworker.ops.locking import Locking
from msgworker.ops.looks import Looks
from msgworker.ops.repairs import Repairs
from msgworker.ops.upkeep import Upkeep

__all__ = ["Ops"]


class Ops(Looks, Repairs, Upkeep, Locking):
    """Looking and repairing; every call is a short transaction of its own."""
