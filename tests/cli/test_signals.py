"""A signal while the instance is still being started stops it in order, too."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from msgworker import App


@pytest.mark.parametrize("mode", ["run", "drain"])
def test_signal_during_start_stops_in_order(tmp_path: Path, mode: str) -> None:
    app = App(f"sqlite:///{tmp_path / 'q.db'}")
    app.create_schema()
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=1)
    make = worker._make_state
    before = signal.getsignal(signal.SIGTERM)

    def make_and_be_told_to_stop() -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return make()

    worker._make_state = make_and_be_told_to_stop  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the signal met no handler of the worker"))
    try:
        if mode == "run":
            worker.run(signals=True, time_limit=30)
        else:
            worker.drain(signals=True, linger=30, time_limit=30)
        assert worker.instance_id is None
        with app.engine.connect() as conn:
            assert conn.exec_driver_sql("SELECT count(*) FROM msgworker_lease").scalar() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
