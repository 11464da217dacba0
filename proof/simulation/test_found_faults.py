"""Faults of the core that the simulation found, each as small as it can be told."""

from __future__ import annotations

from pathlib import Path

from msgworker import App, Message
from msgworker.instance.running.in_flight import InFlight, Lane
from msgworker.store.rows import Row


def test_due_follower_does_not_hide_its_head(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'due.db'}")
    app.create_schema()
    handled: list[int] = []

    @app.handler("t")
    def handle(msg: Message[None]) -> None:
        handled.append(msg.msg_id)

    with app.engine.begin() as conn:
        head = app.send(conn, "t", object_id="X")
        follower = app.send(conn, "t", object_id="X", delay=0.0)
    app.drain(time_limit=20, linger=0.2)
    assert handled == [head, follower]


class LaneThatMoves(Lane):
    """Its flag passes on between two looks at it, as a settling thread may do at any moment."""

    __slots__ = ("_place",)

    @property  # type: ignore[override]
    def place(self) -> int:
        self._place += 1
        return self._place - 1

    @place.setter
    def place(self, place: int) -> None:
        self._place = place


def test_known_holds_the_flag_of_a_lane_that_moves() -> None:
    in_flight = InFlight()
    rows = [Row(i, "X", None, None, 0, 0, 0, None, None) for i in (1, 2, 3)]
    in_flight.lanes.add(LaneThatMoves("a", rows))
    assert 2 in in_flight.flagged()  # else the sweep would release message 2 under its handler
