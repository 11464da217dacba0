"""What `bench.scale` assumes, measured on PostgreSQL: `python -m bench.scale --measure`.

CPU is that of the server's backends, read from /proc, so it holds on a busy machine, too; the
server must run on this one. What is printed belongs into `scale_costs.MEASURED`, with the date.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa

from bench import databases
from bench.process import Counts, watch
from bench.seeding import TABLE, TOPIC, Rows, fill
from msgworker import App, Message, MessageTable
from msgworker.coordination import DatabaseLocks
from msgworker.instance.claiming.heads import Wanted
from msgworker.instance.claiming.passes import SliceSearch
from msgworker.instance.claiming.search import TableSearch
from msgworker.store import controls, lease, recover
from msgworker.table.columns import Slice

LEASES = 1000
RUNNING = 8000
WAITING = 100_000
SHARDS = 4096
DRAINED = 20_000
WORKED = 200
THREADS = 8
HANDLER_SECONDS = 0.5
IDLE_SECONDS = 10.0
REPEAT = 20


class Server:
    """CPU seconds of all backends of one database."""

    def __init__(self, url: sa.URL) -> None:
        self.engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def cpu(self) -> float:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        with self.engine.connect() as conn:
            pids = [row[0] for row in conn.exec_driver_sql(query)]
            pids.remove(conn.exec_driver_sql("SELECT pg_backend_pid()").scalar())
        total = 0
        for pid in pids:
            try:
                with open(f"/proc/{pid}/schedstat") as file:
                    total += int(file.read().split()[0])
            except OSError as error:
                raise databases.NotAvailable(
                    f"the server is not on this machine: {error}"
                ) from None
        return total / 1e9


def measure() -> dict[str, float]:
    """The values of `scale_costs.Measured`, in its units. Raises NotAvailable."""
    with databases.scratch("postgresql") as url:
        app = App(url, table=MessageTable(shard="shard", shards=SHARDS))
        server = Server(url)
        try:
            line = databases.server_line(url, "postgresql")
            print(f"measured on {databases.machine_line()}; {line}")
            return _all(app, server)
        finally:
            app.engine.dispose()


def _all(app: App, server: Server) -> dict[str, float]:
    found: dict[str, float] = {}
    fill(app, [Rows(DRAINED, 1000)])
    statements, cpu, _, seconds = _work(app, server, lambda msg: None, DRAINED)
    found["fast_statements"] = statements / DRAINED
    found["fast_cpu_ms"] = 1000 * cpu / DRAINED
    print(f"a drain of messages that cost nothing: {DRAINED / seconds:,.0f}/s in one process")
    fill(app, [Rows(WORKED, WORKED)])
    statements, cpu, claims, _ = _work(app, server, _sleeping, WORKED)
    found["message_statements"] = statements / WORKED
    found["message_cpu_ms"] = 1000 * cpu / WORKED
    found["message_looks"] = claims / WORKED
    found["idle_statements"], found["idle_cpu_ms"] = _idle(app, server)
    fill(app, [Rows(WAITING, WAITING, values=(("shard", f"mod(i, {SHARDS})"),))])
    found |= _looks(app, server)
    found |= _beats(app, server)
    found |= _recovery(app, server)
    found |= _locks(app, server)
    with app.engine.connect() as conn:
        size = conn.exec_driver_sql(f"SELECT pg_total_relation_size('{TABLE}')").scalar()
    found["row_bytes"] = float(size or 0) / (WAITING + RUNNING)
    return found


def _sleeping(msg: Message[Any]) -> None:
    time.sleep(HANDLER_SECONDS)


def _work(
    app: App, server: Server, handler: Callable[[Any], None], messages: int
) -> tuple[int, float, int, float]:
    """Statements, CPU seconds, looks and seconds of a drain, the heartbeats aside."""
    mine = App(app.engine.url, lease_seconds=300)
    mine.add_handler(TOPIC, handler)
    worker = mine.worker(threads=THREADS)
    assert mine.tables is not None
    counts = Counts()
    watch(mine, counts, worker)
    with _counting(TableSearch, "look") as looks:
        begun, before = time.monotonic(), server.cpu()
        report = worker.drain(linger=0)
    seconds, cpu = time.monotonic() - begun, server.cpu() - before
    assert report.done == messages, report
    mine.engine.dispose()
    return counts.statements, cpu, looks[0], seconds


@contextmanager
def _counting(owner: type, name: str) -> Iterator[list[int]]:
    """How often a method is called while the block runs."""
    calls, method = [0], getattr(owner, name)

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        calls[0] += 1
        return method(self, *args, **options)

    with patch.object(owner, name, counted):
        yield calls


def _idle(app: App, server: Server) -> tuple[float, float]:
    """Statements and CPU milliseconds per second of an instance that finds nothing; its heartbeats
    aside."""
    mine = App(app.engine.url, lease_seconds=3000)
    mine.add_handler(TOPIC, lambda msg: None)
    worker, counts = mine.worker(threads=THREADS), Counts()
    watch(mine, counts, worker)
    with worker:
        worker.start()
        time.sleep(3)
        first, before = counts.statements, server.cpu()
        time.sleep(IDLE_SECONDS)
        statements, cpu = counts.statements - first, server.cpu() - before
    mine.engine.dispose()
    return statements / IDLE_SECONDS, 1000 * cpu / IDLE_SECONDS


def _cost(app: App, server: Server, act: Callable[[sa.Connection], object], repeat: int) -> float:
    """CPU milliseconds of one call, on a connection that has prepared it."""
    with app.engine.connect() as conn:
        for _ in range(8):
            act(conn)
            conn.commit()
        before = server.cpu()
        for _ in range(repeat):
            act(conn)
            conn.commit()
        return 1000 * (server.cpu() - before) / repeat


def _looks(app: App, server: Server) -> dict[str, float]:
    """The oldest rows, by how many are read; and a slice of four shards."""
    t = app.tables
    found = {}
    for slots in (1, 1000):
        search = TableSearch(t, None)

        def look(conn: sa.Connection, search: TableSearch = search, slots: int = slots) -> object:
            return search.look(conn, Wanted(THREADS, slot=1, slots=slots))

        found[slots] = _cost(app, server, look, REPEAT)
    where = Slice("shard", (5, 6, 7, 8))
    slices = SliceSearch(t, None)
    sliced = _cost(
        app,
        server,
        lambda conn: slices.look(conn, Wanted(THREADS, where=where)),
        10 * REPEAT,
    )
    return {"look_cpu_ms": found[1], "wide_look_cpu_ms": found[1000], "slice_look_cpu_ms": sliced}


def _beats(app: App, server: Server) -> dict[str, float]:
    """What one heartbeat costs among few and among many instances."""
    t = app.tables
    found = {}
    for leases in (10, LEASES):
        with app.engine.begin() as conn:
            conn.execute(sa.delete(t.lease))
            for n in range(leases):
                lease.register(conn, t, f"host{n:04}-1-{'x' * 16}", ttl=3600, label=f"host{n}")
            mine = f"UPDATE {TABLE} SET status = 1, claimed_by = 'host' || lpad("
            mine += "mod(msg_id, 1000)::text, 4, '0') || '-1-xxxxxxxxxxxxxxxx' WHERE msg_id IN "
            if leases == LEASES:
                mine += f"(SELECT msg_id FROM {TABLE} WHERE status = 0 LIMIT {RUNNING})"
                conn.exec_driver_sql(mine)
        me = "host0003-1-" + "x" * 16

        def beat(conn: sa.Connection, me: str = me) -> None:
            lease.renew(conn, t, me, ttl=3600, serves=lease.serves_text(t, None))
            conn.commit()
            controls.paused_by(conn, t)
            recover.flagged_by(conn, t, me)
            lease.read_all(conn, t)
            recover.owners(conn, t)

        found[leases] = _cost(app, server, beat, REPEAT)
    return {"beat_cpu_ms": found[10], "beat_of_1000_cpu_ms": found[LEASES], "beat_statements": 5.0}


def _recovery(app: App, server: Server) -> dict[str, float]:
    t = app.tables
    names = [f"host{n:04}-1-" + "x" * 16 for n in range(200)]

    def give_back(conn: sa.Connection) -> None:
        name = names.pop()
        ids = recover.flagged_by(conn, t, name)
        recover.recover(conn, t, ids, dead_id=name, text="measured")

    cost = _cost(app, server, give_back, 100)

    def lose(conn: sa.Connection) -> None:
        seen = lease.read_all(conn, t)[-1]._replace(term=-1)
        lease.take_over(conn, t, seen, me="me", ttl=30)

    read = _cost(app, server, lambda conn: lease.read_all(conn, t), REPEAT)
    return {
        "recovery_cpu_ms": cost,
        "lost_take_over_cpu_ms": max(0.0, _cost(app, server, lose, REPEAT) - read),
    }


def _locks(app: App, server: Server) -> dict[str, float]:
    """A look of Partitions at 1,000 members and all shards; a renewal of 5 leases."""
    locks = DatabaseLocks(app.engine)
    locks.create_schema()
    insert = (
        "INSERT INTO msgworker_lock (name, owner, token, claim_id, since_ms, expires_ms) SELECT "
        "'q:{kind}:' || i, 'host' || lpad(mod(i, 1000)::text, 4, '0') || '-1-xxxxxxxxxxxxxxxx', 1,"
        " 'c', 0, 9999999999999 FROM generate_series(0, {last}) i"
    )
    with app.engine.begin() as conn:
        conn.exec_driver_sql(insert.format(kind="member", last=LEASES - 1))
        conn.exec_driver_sql(insert.format(kind="shard", last=SHARDS - 1))
        conn.exec_driver_sql("ANALYZE msgworker_lock")
    try:
        held = locks.held("q:")
        assert len(held) == LEASES + SHARDS
        mine = [one for one in held if one.owner == held[0].owner]
        for one in mine:
            one.ttl = 3600.0

        def cost(act: Callable[[], object], repeat: int) -> float:
            act()
            before = server.cpu()
            for _ in range(repeat):
                act()
            return 1000 * (server.cpu() - before) / repeat

        return {
            "members_look_cpu_ms": cost(lambda: locks.held("q:"), REPEAT),
            "renewal_cpu_ms": cost(lambda: locks.renew_all(mine), 10 * REPEAT),
        }
    finally:
        locks.close()
