"""Many contracts, three machines: each contract by one at a time, continued where it was left.

Look for: a machine takes a contract with `hold(..., settle=3)`: it begins only when it has renewed
its lease three times. It saves its progress with the token in the same transaction, and only
where no higher token has been there. One machine is killed in the middle of a contract, one stands
still for longer than its lease lasts and then goes on, believing that nothing has happened. The
proof is read from the tables at the end.

`python samples/contract_lease.py` starts the machines as processes of its own.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from msgworker.coordination import DatabaseLocks, Lease, LeaseBusy, LeaseLost, hold

DATA = Path(__file__).parent / "data" / "cdnow_sample.txt"
CONTRACTS = 4
STEPS = 8
TTL = 0.6
STEP_SECONDS = 0.02
SLOW_STEP, SLOW_STEP_SECONDS = STEPS // 2, 0.4
PATIENCE_SECONDS = 60.0

metadata = sa.MetaData()
progress = sa.Table(
    "progress",
    metadata,
    sa.Column("contract", sa.String(20), primary_key=True),
    sa.Column("done", sa.Integer, nullable=False),
    sa.Column("cents", sa.Integer, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
)
step = sa.Table(  # who did what: for the proof
    "step",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("contract", sa.String(20), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("machine", sa.String(20), nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
)
refused = sa.Table(
    "refused",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("contract", sa.String(20), nullable=False),
    sa.Column("machine", sa.String(20), nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
)


@cache
def contracts() -> dict[str, list[int]]:
    """The first customers with enough purchases: what each paid, in cents, in order."""
    paid: dict[str, list[int]] = {}
    for line in DATA.read_text().splitlines():
        _, customer, _, _, dollars = line.split()
        paid.setdefault(customer, []).append(round(float(dollars) * 100))
    many = [customer for customer, all_paid in paid.items() if len(all_paid) >= STEPS]
    return {customer: paid[customer][:STEPS] for customer in many[:CONTRACTS]}


# ---------------------------------------------------------------- a machine


def save(
    engine: sa.Engine, machine: str, lease: Lease, contract: str, number: int, cents: int
) -> bool:
    """One more step is done. False: a holder with a higher token has written; nothing is saved."""
    with engine.begin() as conn:
        changed = conn.execute(
            sa.update(progress)
            .where(
                progress.c.contract == contract,
                progress.c.done == number,
                progress.c.token <= lease.token,
            )
            .values(done=number + 1, cents=progress.c.cents + cents, token=lease.token)
        ).rowcount
        row = {"contract": contract, "machine": machine, "token": lease.token}
        if changed:
            conn.execute(sa.insert(step).values(number=number, **row))
        else:
            conn.execute(sa.insert(refused).values(row))
        return bool(changed)


def work_on(engine: sa.Engine, machine: str, lease: Lease, contract: str, cents: list[int]) -> None:
    """Go on where the contract was left."""
    with engine.connect() as conn:
        done = conn.scalar(sa.select(progress.c.done).where(progress.c.contract == contract))
    for number in range(done, len(cents)):
        # Here it is worked.
        time.sleep(SLOW_STEP_SECONDS if number == SLOW_STEP else STEP_SECONDS)
        if not save(engine, machine, lease, contract, number, cents[number]):
            print(f"{machine}: contract {contract} is refused, token {lease.token} is old")
            lease.check()  # raises LeaseLost
            raise AssertionError(f"{machine} was refused while it held contract {contract}")


def be_machine(machine: str, url: str) -> None:
    engine = sa.create_engine(url, connect_args={"timeout": 60})
    locks = DatabaseLocks(engine)
    while todo := unfinished(engine):
        for contract, cents in todo.items():
            if contract not in unfinished(engine):
                continue
            try:
                with hold(locks, f"contract:{contract}", ttl=TTL, settle=3, label=machine) as lease:
                    print(f"{machine}: contract {contract}, token {lease.token}")
                    work_on(engine, machine, lease, contract, cents)
            except LeaseBusy:
                continue
            except LeaseLost:
                print(f"{machine}: lost contract {contract}")
        time.sleep(0.05)


def unfinished(engine: sa.Engine) -> dict[str, list[int]]:
    """The contracts that are not done."""
    with engine.connect() as conn:
        over = set(conn.scalars(sa.select(progress.c.contract).where(progress.c.done >= STEPS)))
    return {contract: cents for contract, cents in contracts().items() if contract not in over}


# ---------------------------------------------------------------- all of it


def until(condition: Callable[[], object], what: str) -> object:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"BROKEN  not within {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.01)
    return found


class Machines:
    """The processes, and what the tables say about them."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url, connect_args={"timeout": 60})
        self.locks = DatabaseLocks(self.engine)
        self.locks.create_schema()
        metadata.create_all(self.engine)
        with self.engine.begin() as conn:
            rows = [{"contract": c, "done": 0, "cents": 0, "token": 0} for c in contracts()]
            conn.execute(sa.insert(progress), rows)
        command = [sys.executable, "-u", __file__, "--url", url, "--machine"]
        self.all = {name: subprocess.Popen([*command, name]) for name in ("A", "B", "C")}

    def query(self, query: sa.Select) -> list:
        with self.engine.connect() as conn:
            return [tuple(row) for row in conn.execute(query)]

    def in_the_middle(self, machine: str) -> tuple[str, int] | None:
        """Which contract a machine has half done, and its token."""
        for lease in self.locks.held("contract:"):
            contract = lease.name.removeprefix("contract:")
            of = progress.c.contract == contract
            (row,) = self.query(sa.select(progress.c.done, progress.c.token).where(of))
            mine = lease.owner.startswith(f"{machine}:") and row[1] == lease.token
            if mine and 2 <= row[0] <= STEPS - 3:
                return contract, lease.token
        return None

    def stop_in_the_middle(self, machine: str) -> tuple[str, int]:
        """Let a machine stand still in the middle of a contract."""

        def stopped() -> tuple[str, int] | None:
            if self.in_the_middle(machine) is None:
                return None
            # No other process writes now, so none is stopped while it holds the write lock.
            with self.engine.begin() as conn:
                conn.execute(sa.update(progress).where(sa.false()).values(done=0))
                self.all[machine].send_signal(signal.SIGSTOP)
            found = self.in_the_middle(machine)
            if found is None:
                self.all[machine].send_signal(signal.SIGCONT)
            return found

        return until(stopped, f"{machine} is in the middle of a contract")  # type: ignore[return-value]

    def others_in(self, contract: str, machine: str) -> list:
        """Steps of a contract that others did."""
        which = (step.c.contract == contract, step.c.machine != machine)
        return self.query(sa.select(step.c.number).where(*which))

    def end(self) -> None:
        for process in self.all.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.locks.close()
        self.engine.dispose()


def run(url: str) -> int:
    machines = Machines(url)
    try:
        killed, _ = machines.stop_in_the_middle("A")
        machines.all["A"].kill()
        print(f"A is killed in the middle of contract {killed}")
        paused, token = machines.stop_in_the_middle("B")
        print(f"B stands still in the middle of contract {paused}, token {token}")
        until(lambda: machines.others_in(paused, "B"), "another machine goes on with it")
        machines.all["B"].send_signal(signal.SIGCONT)
        print("B goes on")
        for name in "BC":
            machines.all[name].wait(PATIENCE_SECONDS)
        return prove(machines, killed, paused, token)
    finally:
        machines.end()


def prove(machines: Machines, killed: str, paused: str, token: int) -> int:
    wanted = contracts()
    found = dict(
        (row[0], row[1:])
        for row in machines.query(sa.select(progress.c.contract, progress.c.done, progress.c.cents))
    )
    order = sa.select(step.c.contract, step.c.number, step.c.machine, step.c.token)
    steps = machines.query(order.order_by(step.c.id))
    by_contract: dict[str, list] = {contract: [] for contract in wanted}
    for contract, *rest in steps:
        by_contract[contract].append(rest)
    late = machines.query(
        sa.select(refused.c.id).where(refused.c.contract == paused, refused.c.token == token)
    )
    facts = {
        f"{len(wanted)} contracts are done, each with its sum": all(
            found[c] == (STEPS, sum(cents)) for c, cents in wanted.items()
        ),
        "each step was done once, in order": all(
            [number for number, _, _ in rows] == list(range(STEPS)) for rows in by_contract.values()
        ),
        "tokens only rise": all(
            [t for _, _, t in rows] == sorted(t for _, _, t in rows)
            for rows in by_contract.values()
        ),
        f"contract {killed} of the killed machine was continued by another": (
            len({machine for _, machine, _ in by_contract[killed]}) > 1
        ),
        f"contract {paused} of the paused machine was continued by another": (
            len({machine for _, machine, _ in by_contract[paused]}) > 1
        ),
        "what the paused machine wrote afterwards was refused": bool(late),
    }
    for fact, holds in facts.items():
        print(f"{'proved ' if holds else 'BROKEN '} {fact}")
    return 0 if all(facts.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.machine:
        be_machine(given.machine, given.url)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return run(f"sqlite:///{os.path.join(folder, 'contracts.db')}")


if __name__ == "__main__":
    raise SystemExit(main())
