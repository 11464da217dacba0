"""Messages a second of the interpreter that runs this: an App in one process, with handlers that do
nothing and with handlers that compute, by one thread and by two.

It is no benchmark: it shows whether threads of a free-threaded Python run beside each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from proof.matrix.bounds import ROOT
from tests.servers import VARIABLES

EMPTY, COMPUTED = 20_000, 600
ROUNDS = 60_000
"""Of a loop: some milliseconds."""


def of(python: Path) -> int:
    """Let a cell's Python measure; its exit code."""
    command = [python, "-m", "tests.servers", "--", python, "-m", "proof.matrix.speed"]
    environment = {**os.environ, "PYTHON_GIL": "0"} if _free(python) else None
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _free(python: Path) -> bool:
    ask = "import sysconfig as c; print(bool(c.get_config_var('Py_GIL_DISABLED')))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def rate(url: str, *, threads: int, compute: bool) -> float:
    """Messages a second of one drain, over as many objects as messages."""
    from msgworker import App

    app, count = App(url), COMPUTED if compute else EMPTY
    app.create_schema()

    @app.handler("speed")
    def handle(msg: Any) -> None:
        if compute:
            total = 0
            for number in range(ROUNDS):
                total += number

    with app.engine.begin() as conn:
        app.send_many(conn, "speed", [(None, f"o{number}") for number in range(count)])
    began = time.perf_counter()
    report = app.drain(threads=threads, linger=0)
    took = time.perf_counter() - began
    app.engine.dispose()
    assert report.done == count, report
    return count / took


def main() -> None:
    told = sys.version.split()[0]
    if os.environ.get("PYTHON_GIL") == "0":
        told += " without the GIL"
    for compute, threads in ((False, 1), (False, 2), (True, 1), (True, 2)):
        what = (
            f"{'computing' if compute else 'empty'} handlers, {threads} thread{'s' * (threads > 1)}"
        )
        with tempfile.TemporaryDirectory() as folder:
            found = [rate(f"sqlite:///{folder}/a.db", threads=threads, compute=compute)]
            if os.environ.get(VARIABLES["postgresql"]):
                url = _fresh(os.environ[VARIABLES["postgresql"]])
                found.append(rate(url, threads=threads, compute=compute))
        print(f"  Python {told}, {what}: {', '.join(f'{one:,.0f}/s' for one in found)}", flush=True)


def _fresh(base: str) -> str:
    """The URL of a database of its own."""
    import sqlalchemy as sa

    url, name = sa.make_url(base), f"speed_{time.time_ns()}"
    engine = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return url.set(database=name).render_as_string(hide_password=False)


if __name__ == "__main__":
    main()
