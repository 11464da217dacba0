"""A process that holds a lock, for tests that stop or kill it.

`python -m tests.coordination.holder URL NAME TTL`: says "held TOKEN", and "lost" when it knows that
it is; then, whether its release and its renewal did anything.
"""

from __future__ import annotations

import sys
import threading

from msgworker.coordination import Lease, LeaseLost, hold
from tests.coordination.places import connect


def main(url: str, name: str, ttl: float) -> None:
    locks = connect(url, session=ttl)
    lost = threading.Event()

    def told(_lease: Lease) -> None:
        lost.set()

    with hold(locks, name, ttl=ttl, wait=30, on_lost=told) as lease:
        print("held", lease.token, flush=True)
        lost.wait()
        try:
            lease.check()
        except LeaseLost:
            print("lost", flush=True)
        print("renewed", locks.renew(lease), flush=True)
        print("released", locks.release(lease), flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    except LeaseLost:
        print("told at the end", flush=True)
