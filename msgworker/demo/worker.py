"""One worker process of the demonstration: `python -m msgworker.demo.worker URL LEASE LABEL`.

It also stops in order when its standard input ends, so that no worker outlives a demonstration
that was killed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from msgworker.demo.purchases import make_app


def main() -> int:
    url, lease_seconds, label = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    logging.basicConfig(level=logging.ERROR)  # failed tries are meant; the summary counts them
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    app = make_app(url, lease_seconds=lease_seconds, label=label)
    with app.worker(threads=2) as worker:
        worker.run(signals=True, grace=10)
    app.engine.dispose()
    return 0


def _stop_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main())
