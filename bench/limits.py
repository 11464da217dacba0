"""What the server itself allows, by pgbench: two statements, no queue logic, no Python.

batched: claim 100 in one statement, complete 100 in one; one client.
one_transaction: claim one and complete it in one transaction, with a row written between them or
without; so many clients.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import sqlalchemy as sa

from bench.databases import NotAvailable

BATCH = 100
SETUP = (
    "DROP TABLE IF EXISTS limit_message",
    """CREATE TABLE limit_message (
        msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        topic text NOT NULL DEFAULT 'default', object_id text, payload text,
        status smallint NOT NULL DEFAULT 0, error_try_times smallint NOT NULL DEFAULT 0,
        claimed_by text, claimed_at timestamptz, finished_at timestamptz)""",
    "CREATE INDEX limit_open ON limit_message (msg_id) WHERE status = 0",
    "DROP TABLE IF EXISTS limit_effect",
    "CREATE TABLE limit_effect (number bigint PRIMARY KEY, customer text, cents integer NOT NULL)",
)
FILL = """INSERT INTO limit_message (payload)
 SELECT '{{"i":' || i || '}}' FROM generate_series(1, {}) i"""
CLAIM = """UPDATE limit_message SET status = 1, claimed_by = 'me', claimed_at = now()
 WHERE msg_id IN (SELECT msg_id FROM limit_message WHERE status = 0
 ORDER BY msg_id LIMIT {} FOR UPDATE SKIP LOCKED) RETURNING msg_id, payload"""
BATCHED = """WITH c AS ({claim})
 SELECT array_agg(msg_id) AS ids, max(payload) AS payload FROM c \\gset
UPDATE limit_message SET status = 2, finished_at = now(), claimed_by = NULL
 WHERE msg_id = ANY (:ids::bigint[]) AND status + 0 = 1;
"""
ONE_TRANSACTION = """BEGIN;
{claim} \\gset
{effect}UPDATE limit_message SET status = 2, finished_at = now(), claimed_by = NULL
 WHERE msg_id = :msg_id AND status + 0 = 1;
END;
"""
EFFECT = "INSERT INTO limit_effect VALUES (:msg_id, 'one', 1);\n"


def batched(url: sa.URL, messages: int) -> float:
    """Messages per second; raises NotAvailable without pgbench."""
    script = BATCHED.format(claim=CLAIM.format(BATCH).replace("\n", ""))
    return BATCH * _run(url, script, messages, messages // BATCH, 1)


def one_transaction(url: sa.URL, messages: int, clients: int, *, writes: bool = False) -> float:
    """Messages per second with so many clients; raises NotAvailable without pgbench. writes: a row
    for each."""
    claim, effect = CLAIM.format(1).replace("\n", ""), EFFECT if writes else ""
    script = ONE_TRANSACTION.format(claim=claim, effect=effect)
    return _run(url, script, messages, messages // clients, clients)


def _run(url: sa.URL, script: str, messages: int, transactions: int, clients: int) -> float:
    program = _pgbench()
    _prepare(url, messages)
    command = [program, "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2))]
    command += ["-t", str(max(1, transactions)), *_address(url)]
    with tempfile.TemporaryDirectory(prefix="msgworker-bench-") as folder:
        path = Path(folder) / "limit.sql"
        path.write_text(script)
        environment = {**os.environ, "PGPASSWORD": url.password or ""}
        done = subprocess.run(
            [*command, "-f", str(path), str(url.database)],
            env=environment,
            capture_output=True,
            text=True,
        )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode or not found or "aborted" in done.stderr:
        raise NotAvailable(f"pgbench failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(found[1])


def _prepare(url: sa.URL, messages: int) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as conn:
        tidy = ("VACUUM ANALYZE limit_message", "CHECKPOINT")
        for statement in (*SETUP, FILL.format(messages + BATCH), *tidy):
            conn.exec_driver_sql(statement)


def _pgbench() -> str:
    found = shutil.which("pgbench")
    if found:
        return found
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin/pgbench"))
    if not places:
        raise NotAvailable("pgbench is not installed: the limit is not measured")
    return places[-1]


def _address(url: sa.URL) -> list[str]:
    parts = {"-h": url.host or url.query.get("host"), "-p": url.port, "-U": url.username}
    return [text for flag, value in parts.items() if value for text in (flag, str(value))]
