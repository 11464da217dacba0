"""One customer with 1,000 accounts: the threads go to the accounts, which is where the time goes.

The accounts do not depend on each other, and each takes 10 ms of waiting (a statement on a slow
system). One message is handled by one instance, so the accounts are sent in two messages, each with
an object of its own ("C-1/0"), so that they may run at once: two instances with five threads each
share them. `lanes_limit=1`: an instance that is busy leaves the other message to the other.

    python samples/05_fan_out.py [--url URL] [--accounts N]

Look for: nearly ten times faster than one thread; and after `kill -9` of one instance in the
middle, only accounts that were not recorded as done run again.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from msgworker import App, Context, Message

PARTS = 2
THREADS = 5
ACCOUNT_SECONDS = 0.01
LEASE_SECONDS = 3.0


def make_app(url: str, journal: Path, threads: int) -> App:
    app = App(url, lease_seconds=LEASE_SECONDS, lanes_limit=1, poll_seconds=0.02)

    what_ran = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def settle_account(account: str) -> None:
        os.write(what_ran, f"{account}\n".encode())  # whatever any table says
        time.sleep(ACCOUNT_SECONDS)

    @app.handler("customer.settle")
    def settle(msg: Message, ctx: Context) -> None:
        ctx.fan_out(settle_account, msg.payload["accounts"], threads=threads).raise_for_failed()

    return app


def instance(url: str, journal: Path) -> None:
    """One instance in a process of its own, until its input is closed."""
    with make_app(url, journal, THREADS).worker(threads=1) as worker:
        worker.start()
        print("ready", flush=True)
        sys.stdin.read()


def start_instance(url: str, journal: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--url", url, "--instance", str(journal)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    process.stdout.readline()  # it is ready
    return process


def send(app: App, customer: str, accounts: list[str], parts: int) -> list[int]:
    """Send the accounts of a customer in parts; all become visible at once."""
    with app.engine.begin() as conn:
        return [
            app.send(
                conn,
                "customer.settle",
                {"accounts": accounts[part::parts]},
                object_id=f"{customer}/{part}",
            )
            for part in range(parts)
        ]


def wait(app: App) -> float:
    """Seconds until everything that was sent is done."""
    begun = time.monotonic()
    while any(count.status != "done" for count in app.ops.counts()):
        time.sleep(0.02)
    return time.monotonic() - begun


def ran(journal: Path) -> list[str]:
    return journal.read_text().split() if journal.exists() else []


def recorded(app: App) -> set[str]:
    """The accounts that the item table has as done."""
    with app.engine.connect() as conn:
        query = "SELECT item_key FROM msgworker_item WHERE status = 2"
        return {row[0] for row in conn.exec_driver_sql(query)}


def one_thread(url: str, journal: Path, accounts: list[str]) -> float:
    app = make_app(url, journal, 1)
    send(app, "C-0", accounts, 1)
    begun = time.monotonic()
    app.drain(threads=1, linger=0)
    seconds = time.monotonic() - begun
    app.engine.dispose()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url")
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--instance", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.instance:
        instance(options.url, options.instance)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return show(options.url or f"sqlite:///{Path(folder) / 'crm.db'}", Path(folder), options)


def show(url: str, folder: Path, options: argparse.Namespace) -> int:
    app = make_app(url, folder / "unused", THREADS)
    app.create_schema()
    several = [f"{n:04d}" for n in range(options.accounts)]
    alone = one_thread(url, folder / "alone", [f"a{n}" for n in several])
    print(f"one thread:                         {alone:6.2f} s for {len(several):,} accounts")

    shared, killed = folder / "shared", folder / "killed"
    both = [start_instance(url, shared) for _ in range(2)]
    send(app, "C-1", [f"b{n}" for n in several], PARTS)
    together = wait(app)
    print(f"two instances, {THREADS} threads each:       {together:6.2f} s")
    print(f"                                    {alone / together:6.2f} times faster")
    for process in both:
        process.communicate()

    victim, heir = [start_instance(url, killed) for _ in range(2)]
    accounts = [f"c{n}" for n in several]
    send(app, "C-2", accounts, PARTS)
    while len(ran(killed)) < len(accounts) / 2:
        time.sleep(0.02)
    victim.kill()
    victim.communicate()
    done_before = recorded(app)
    wait(app)
    heir.communicate()
    times = Counter(ran(killed))
    again = {account for account, count in times.items() if count > 1}
    wrong = again & done_before
    print(f"killed one in the middle:           {len(again)} accounts ran again, ", end="")
    print(f"{len(wrong)} of them had been recorded as done")
    app.engine.dispose()
    complete = set(times) == set(accounts)
    return 0 if complete and not wrong else 1


if __name__ == "__main__":
    raise SystemExit(main())
