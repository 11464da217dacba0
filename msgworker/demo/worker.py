"""One worker process of the demonstration: `python -m msgworker.demo.worker URL LEASE_SECONDS`."""

from __future__ import annotations

import logging
import sys

from msgworker.demo.contract import make_app


def main() -> int:
    url, lease_seconds = sys.argv[1], float(sys.argv[2])
    logging.basicConfig(level=logging.ERROR)  # failures are expected here; the summary counts them
    app = make_app(url, lease_seconds=lease_seconds)
    with app.worker(threads=2) as worker:
        worker.run(signals=True, grace=10)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
