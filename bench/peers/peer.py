"""The peers: what is installed of them, how they are set up, and what they do not do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SCRIPTS = Path(__file__).parent / "scripts"
NO_EFFECTS = "not offered: completions do not commit with a handler's writes"
Promise = Literal["order", "durable", "row", "effects", "batch"]
PROMISES: Mapping[Promise, str] = {
    "order": "messages of an object are handled in the order in which they were sent, also those "
    "of one bulk call or transaction",
    "durable": "a commit is as safe as the server is set, with no unlogged table and no "
    "`synchronous_commit` of its own",
    "row": "a row says how a message ended, after its end",
    "effects": "what a handler writes commits with the record that it was done",
    "batch": "a handler takes 500 messages in one transaction",
}
"""What msgworker does in each row that asks for it; in the words of performance.md."""
ASKED: Mapping[str, tuple[Promise, ...]] = {
    "unordered": ("durable", "row"),
    "ordered": ("order", "durable", "row"),
    "effects": ("durable", "row", "effects", "batch"),
    "effects ordered": ("order", "durable", "row", "effects", "batch"),
    "pickup": ("durable", "row"),
}
"""By kind of work."""


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """One queue.

    packages: exact versions, as its package manager takes them; the first one is the peer itself.
    manager: "release" = a commit of this repository. setup: the configuration that its own
    documentation has for speed. lacks: kinds of work that it does not offer, and why. without: what
    it does not do of what is asked in a row. keeps_done: finished jobs stay in its table.
    """

    name: str
    manager: Literal["pip", "npm", "release"]
    packages: tuple[str, ...]
    script: str
    setup: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    without: tuple[Promise, ...] = ()
    keeps_done: bool = False

    @property
    def version(self) -> str:
        """As it is pinned."""
        return self.packages[0].rpartition("@" if self.manager == "npm" else "==")[2]

    @property
    def shown(self) -> str:
        return f"{self.name} {self.version}"

    def missing(self, kind: str) -> tuple[Promise, ...]:
        """What this kind of work asks for and it does not do."""
        return tuple(promise for promise in ASKED[kind] if promise in self.without)


PEERS = (
    Peer(
        "msgworker",
        "release",
        ("msgworker==0.2.0",),
        "msgworker_peer.py",
        "as that of this tree; SQLAlchemy and psycopg of the same versions",
        keeps_done=True,
    ),
    Peer(
        "procrastinate",
        "pip",
        ("procrastinate==3.10.0", "psycopg[binary]"),
        "procrastinate_peer.py",
        "20 async jobs at once, lock= for order, LISTEN/NOTIFY",
        {"effects": NO_EFFECTS},
        ("effects", "batch"),
        keeps_done=True,
    ),
    Peer(
        "pgqueuer",
        "pip",
        ("pgqueuer==1.6.0", "asyncpg"),
        "pgqueuer_peer.py",
        "asyncpg pool, batch_size=100, an entrypoint with concurrency_limit=1 for each object",
        {"effects": NO_EFFECTS},
        ("effects", "batch"),
    ),
    Peer(
        "awa",
        "pip",
        ("awa-pg==0.6.9",),
        "awa_peer.py",
        "256 workers; for order a PartitionedQueue of 8 with one worker each",
        {"effects": NO_EFFECTS},
        ("effects", "batch"),
    ),
    Peer(
        "graphile-worker",
        "npm",
        ("graphile-worker@0.18.0",),
        "graphile_worker_peer.mjs",
        "24 jobs at once, localQueue 500, completeJobBatchDelay 0, queueName for order",
        {"effects": NO_EFFECTS},
        ("order", "row", "effects", "batch"),
    ),
    Peer(
        "pg-boss",
        "npm",
        ("pg-boss@12.38.0",),
        "pg_boss_peer.mjs",
        "batchSize 500 in bursts, 2 workers, key_strict_fifo for order, transactional for effects",
        without=("order",),
        keeps_done=True,
    ),
    Peer(
        "dbos",
        "pip",
        ("dbos==3.4.0",),
        "dbos_peer.py",
        "worker_concurrency 1,000, 16 threads, polled every 10 ms, a partition with "
        "partition_concurrency 1 for each object, a datasource's transaction for effects",
        without=("order", "batch"),
        keeps_done=True,
    ),
    Peer(
        "pgmq",
        "pip",
        ("pgmq[async]==1.1.4",),
        "pgmq_peer.py",
        "SQL 1.13.0 of its client; 2 readers of batches of 2,000 (effects: 500), then deleted; "
        "for order one reader, read_grouped_rr and its index",
        without=("row",),
    ),
)
