"""Trials that run ahead: most of a trial is waiting, so several run at once.

A test marked `ahead` is called in a thread of a pool, started with the first of them, each with a
`Trial` on a database of its own; when its turn comes, pytest waits for its outcome. `ahead(lease=)`
gives the lease in seconds; `ahead(spare=True)` gives a longer one where the machine has more to do
than it can, for tests that count deaths: a live process that gets no time loses a short lease, and
that counts as one. With `proxied=True` its consumers go through a Proxy, `trial.proxy`.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proof.crash import torture
from proof.crash.fleet import Trial, Verdict
from tests import engines
from tests.plugin import NAMES, Database, _fresh
from tests.servers import CannotHave, Fleet
from tests.support.proxy import Proxy

AT_ONCE = 5
LEASE_SECONDS = 4.0
MOST_SPARE = 5.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ahead: its Trial runs ahead, beside those of other tests")


@pytest.hookimpl(tryfirst=True)  # before xdist's own, that looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where the tests run on several processes (xdist), all trials belong to one of them."""
    for item in items:
        if item.get_closest_marker("ahead"):
            item.add_marker(pytest.mark.xdist_group("ahead"))


@contextlib.contextmanager
def tortured(
    name: str,
    folder: Path,
    processes: int,
    seconds: float,
    *,
    least: int = 0,
    topics: Iterable[str] = (),
    enough: Callable[[torture.Torture], object] = lambda run: True,
    **options: Any,
) -> Iterator[tuple[torture.Torture, Verdict]]:
    """A torture that broke no rule and left nothing, under a seed that is printed. least, topics:
    faults, and topics that were sent, without which it goes on; so it does until what was done is
    `enough`; options: of `torture.running`."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with contextlib.ExitStack() as stack:
        try:
            run = stack.enter_context(torture.running(name, folder, processes, seed, **options))
        except CannotHave as reason:
            pytest.skip(str(reason))
        run.enough = enough
        if least:
            run.faults_after, run.least_faults, run.least_topics = 1.0, least, {*topics}
        verdict = run.run(seconds)
        said = torture.report(run, verdict)
        print(said)
        assert not verdict.violations, said
        assert not (run.scenario.finishes and torture.left(verdict)), said
        yield run, verdict


class Ahead:
    """The trials of the selected tests, by the test's id."""

    def __init__(self, items: list[pytest.Item], servers: Fleet, folder: Path) -> None:
        self._servers = servers
        self._folder = folder
        self._pool = ThreadPoolExecutor(AT_ONCE, "trial")
        chosen = [item for item in items if item.get_closest_marker("ahead")]
        for name in {_name_of(item) for item in chosen} - {"sqlite"}:
            with contextlib.suppress(CannotHave):  # each test will say so
                servers.url(name)
        engines.watched = not chosen
        self._outcomes = {item.nodeid: self._pool.submit(self._try, item) for item in chosen}

    def outcome(self, item: pytest.Item) -> Future[None]:
        return self._outcomes[item.nodeid]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        engines.watched = True

    def _try(self, item: pytest.Function) -> None:
        marker = item.get_closest_marker("ahead")
        assert marker is not None
        folder = self._folder / f"{abs(hash(item.nodeid)):x}"
        folder.mkdir()
        facts = {k: v for k, v in item.callspec.params.items() if k != "trial"}
        fresh = contextlib.contextmanager(_fresh)
        with fresh(_name_of(item), self._servers, folder, end=lambda: None) as database:
            url, proxy = database.url, None
            if marker.kwargs.get("proxied"):
                proxy = Proxy.before(url)
                url = proxy.url_of(url)
            lease = marker.kwargs.get("lease", LEASE_SECONDS)
            if marker.kwargs.get("spare"):
                lease *= load_factor()
            trial = Trial(url, folder, lease=lease, sends_with=database.url, proxy=proxy)
            try:
                item.obj(trial=trial, **facts)
            finally:
                trial.close()


def load_factor() -> float:
    """1 on a machine that keeps up with what runs on it, up to 5 where much more waits."""
    per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(MOST_SPARE, max(1.0, per_core / 2))


def _name_of(item: Any) -> str:
    return str(item.callspec.params["trial"])


@pytest.fixture(scope="session")
def ahead(
    request: pytest.FixtureRequest, servers: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ahead]:
    """Starts them all: in one process, or each would start them all."""
    items = request.session.items
    grouped = any(item.nodeid.endswith("@ahead") for item in items)
    if getattr(request.config.option, "loadgroup", False) and not grouped:
        pytest.fail(
            "this pytest makes pytest-xdist forget its groups: take the one of the group test"
        )
    made = Ahead(items, servers, tmp_path_factory.mktemp("trials"))
    yield made
    made.close()


@pytest.fixture(params=NAMES)
def trial(request: pytest.FixtureRequest, ahead: Ahead) -> Future[None]:
    """What becomes of this test's trial; the test itself is given the Trial."""
    return ahead.outcome(request.node)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("ahead") is None:
        return None
    pyfuncitem.funcargs["trial"].result()
    return True


@pytest.fixture(params=["postgresql", "mariadb"])
def served(request: pytest.FixtureRequest) -> Database:
    """A database that has sessions."""
    found: Database = request.getfixturevalue(request.param)
    return found
