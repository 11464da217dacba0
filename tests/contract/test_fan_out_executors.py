"""Items on executors of the user: processes, Dask, any other."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import pytest

from tests.support.fan_out import (
    Trying,
    die,
    double,
    odd,
    records,
    refuse_odd,
    refused,
    run,
    write_effect,
)


class Slow(Executor):
    """Runs tasks on threads of its own and notes how many are open."""

    def __init__(self) -> None:
        self._inner = ThreadPoolExecutor(2)
        self._open = 0
        self._lock = threading.Lock()
        self.most = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            self._open += 1
            self.most = max(self.most, self._open)

        def task() -> Any:
            try:
                return fn(*args, **kwargs)
            finally:
                with self._lock:
                    self._open -= 1

        return self._inner.submit(task)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait=wait, cancel_futures=cancel_futures)


def test_any_executor_runs_items_with_few_in_flight(app):
    with Slow() as executor:
        options = {"executor": executor, "threads": 7}
        result = run(app, lambda ctx: ctx.fan_out(refuse_odd, range(500), **options))
    assert result.values == [None if n % 2 else n for n in range(500)]
    assert result.failed_count == 250
    assert executor.most <= 7


def test_processes_run_items(sqlite_app):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        result = run(sqlite_app, lambda ctx: ctx.fan_out(double, range(100), executor=executor))
    assert result.values == [2 * n for n in range(100)]


def test_a_function_that_cannot_travel_is_refused_before_anything_runs(sqlite_app):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        fan = refused(sqlite_app, lambda ctx: ctx.fan_out(lambda n: n, [1], executor=executor))
    assert "define it at the top level of a module" in fan


@pytest.mark.long
def test_a_broken_executor_fails_the_try_and_no_item(sqlite_app):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        trying = Trying(sqlite_app, lambda ctx: ctx.fan_out(kill, [1, 2, 3], executor=executor))
        trying.drain()
    assert isinstance(trying.error, BrokenProcessPool)
    assert records(sqlite_app) == {}


def kill(n: int) -> None:
    import os

    os._exit(1)


@pytest.mark.long
def test_what_an_item_raises_in_a_process_is_its_failure(sqlite_app):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        result = run(sqlite_app, lambda ctx: ctx.fan_out(die, [1], executor=executor))
    assert result.failed[1].startswith("SystemExit: item 1 ends its process")


@pytest.mark.long
def test_what_cannot_travel_to_or_from_a_process_fails_its_item_alone(sqlite_app):
    errors = {
        "raises": "Odd: 17: account closed",
        "hides": "ValueError: <unlocked",
        "returns": "PayloadError: an item's value is stored as JSON, got a OddItem",
        threading.Lock(): "TypeError: cannot pickle",
    }
    items = [*errors, *range(20)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        options = {"executor": executor, "key": items.index}
        result = run(sqlite_app, lambda ctx: ctx.fan_out(odd, items, **options))
    assert result.values[len(errors) :] == list(range(20))
    for place, error in enumerate(errors.values()):
        assert result.failed[place].startswith(error)


def test_an_executor_that_is_shut_down_fails_the_try(sqlite_app):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    text = refused(sqlite_app, lambda ctx: ctx.fan_out(double, [1], executor=executor))
    assert text.startswith("RuntimeError: cannot schedule new futures")


def test_transactional_items_run_on_no_executor(sqlite_app):
    with ThreadPoolExecutor(1) as executor:
        options = {"executor": executor, "transactional_items": True}
        text = refused(sqlite_app, lambda ctx: ctx.fan_out(write_effect, [1], **options))
    assert "leave out executor=" in text


@pytest.mark.filterwarnings("ignore")  # those of the cluster's own libraries
def test_a_dask_cluster_runs_items(sqlite_app):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    with (
        distributed.LocalCluster(**options, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        result = run(sqlite_app, lambda ctx: ctx.fan_out(refuse_odd, range(40), executor=executor))
    assert result.values == [None if n % 2 else n for n in range(40)]
    assert result.failed[1].startswith("ValueError: 1 is odd")
    assert len(records(sqlite_app)) == 40
