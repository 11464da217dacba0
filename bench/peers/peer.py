"""The peers: what is installed of them, how they are set up, and what they do not offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SCRIPTS = Path(__file__).parent / "scripts"
NO_EFFECTS = "not offered: completions do not commit with a handler's writes"


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """One queue.

    packages: exact versions, as its package manager takes them; the first one is the peer itself.
    setup: the configuration that its own documentation has for speed. lacks: kinds of work that it
    does not offer, and why. keeps_done: finished jobs stay in its table.
    """

    name: str
    manager: Literal["pip", "npm"]
    packages: tuple[str, ...]
    script: str
    setup: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    keeps_done: bool = False

    @property
    def version(self) -> str:
        """As it is pinned."""
        return self.packages[0].rpartition("==" if self.manager == "pip" else "@")[2]

    @property
    def shown(self) -> str:
        return f"{self.name} {self.version}"


PEERS = (
    Peer(
        "procrastinate",
        "pip",
        ("procrastinate==3.10.0", "psycopg[binary]"),
        "procrastinate_peer.py",
        "20 async jobs at once, lock= for order, LISTEN/NOTIFY",
        {"effects": NO_EFFECTS},
        keeps_done=True,
    ),
    Peer(
        "pgqueuer",
        "pip",
        ("pgqueuer==1.6.0", "asyncpg"),
        "pgqueuer_peer.py",
        "asyncpg pool, batch_size=100, an entrypoint with concurrency_limit=1 for each object",
        {"effects": NO_EFFECTS},
    ),
    Peer(
        "awa",
        "pip",
        ("awa-pg==0.6.9",),
        "awa_peer.py",
        "256 workers; for order a PartitionedQueue of 8 with one worker each",
        {"effects": NO_EFFECTS},
    ),
    Peer(
        "graphile-worker",
        "npm",
        ("graphile-worker@0.18.0",),
        "graphile_worker_peer.mjs",
        "24 jobs at once, localQueue 500, completeJobBatchDelay 0, queueName for order",
        {"effects": NO_EFFECTS},
    ),
    Peer(
        "pg-boss",
        "npm",
        ("pg-boss@12.38.0",),
        "pg_boss_peer.mjs",
        "batchSize 500 in bursts, 2 workers, key_strict_fifo for order, transactional for effects",
        keeps_done=True,
    ),
)
