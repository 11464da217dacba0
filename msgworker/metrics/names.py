"""All metrics. docs/operate/metrics.md has the same table; a test compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgworker.latency import RAN, WAITED

Kind = Literal["counter", "gauge", "histogram"]
BATCHES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. bounds: of a histogram. joined: how the gauges of several instances and processes
    become one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()
    joined: Literal["sum", "min"] = "sum"


MESSAGES = Metric(
    "msgworker_messages_total", "counter", "Outcomes of messages", ("topic", "outcome")
)
HANDLER = Metric("msgworker_handler_seconds", "histogram", "Run time of handlers", ("topic",), RAN)
WAIT = Metric(
    "msgworker_wait_seconds",
    "histogram",
    "Time from the sending of a message to its first start",
    ("topic",),
    WAITED,
)
LOOKS = Metric("msgworker_looks_total", "counter", "Looks for work")
WASTED = Metric("msgworker_wasted_looks_total", "counter", "Looks for work that claimed nothing")
OFFERED = Metric("msgworker_claims_offered_total", "counter", "Messages that claims tried to get")
WON = Metric("msgworker_claims_won_total", "counter", "Messages that claims got")
SETTLES = Metric("msgworker_settle_messages", "histogram", "Outcomes written at once", (), BATCHES)
IN_FLIGHT = Metric(
    "msgworker_in_flight_messages", "gauge", "Claimed messages, at the last heartbeat"
)
RUNNING = Metric("msgworker_running_handlers", "gauge", "Running handlers, at the last heartbeat")
INSTANCES = Metric("msgworker_instances", "gauge", "Instances that run in these processes")
THREADS = Metric("msgworker_handler_threads", "gauge", "Handler threads of these instances")
MARGIN = Metric(
    "msgworker_lease_margin_seconds",
    "gauge",
    "Time for which the lease was still trusted when it was last renewed, the shortest",
    joined="min",
)
LOST = Metric("msgworker_lease_losses_total", "counter", "Leases that were lost")
RECOVERIES = Metric("msgworker_recoveries_total", "counter", "Dead instances that were recovered")
RECOVERED = Metric(
    "msgworker_recovered_messages_total", "counter", "Messages that were given back for them"
)
OUTAGES = Metric("msgworker_database_outages_total", "counter", "Outages of the database")
AWAY = Metric("msgworker_database_away", "gauge", "Instances that cannot reach the database now")
ALONE = Metric(
    "msgworker_batches_alone_total", "counter", "Batches that were rolled back and ran one by one"
)
TICKS = Metric("msgworker_schedule_ticks_total", "counter", "Ticks that were sent", ("schedule",))
TICKS_FAILED = Metric(
    "msgworker_schedule_failures_total", "counter", "Failed tries to send a tick", ("schedule",)
)
UP = Metric("msgworker_database_up", "gauge", "Whether the database answers within the deadline")
OLDEST = Metric(
    "msgworker_oldest_waiting_seconds", "gauge", "Age of the oldest new message", ("topic",)
)
TABLE = Metric(
    "msgworker_table_messages",
    "gauge",
    "Unfinished and dead messages in the table, counted up to 10000",
    ("topic", "status"),
)
LIVING = Metric("msgworker_table_instances", "gauge", "Instances that work on the table", ("life",))

METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        *(MESSAGES, HANDLER, WAIT, LOOKS, WASTED, OFFERED, WON, SETTLES, IN_FLIGHT, RUNNING),
        *(INSTANCES, THREADS, MARGIN, LOST, RECOVERIES, RECOVERED, OUTAGES, AWAY, ALONE),
        *(TICKS, TICKS_FAILED, UP, OLDEST, TABLE, LIVING),
    )
}
"""By name, in the order of the documentation."""
