"""What a torture is made of, as values: what is sent, what goes wrong how often, and by what terms
the run is judged besides those of every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proof.crash import points
from proof.crash.consumer import LIMITED, MAX_RUNNING, METERED, PER_SECOND, SCHEDULES
from proof.judge import CHAIN

OBJECTS = 200
SLOW_SECONDS = 1.5
DEADLY = (
    points.AFTER_CLAIM,
    points.IN_HANDLER,
    points.AFTER_EFFECT,
    points.IN_SETTLE,
    points.AFTER_SETTLE,
)
Load = tuple[str | None, str, dict[str, Any]]  # object, topic, what it does


def mixed(count: int, objects: int, **does: Any) -> list[Load]:
    """Plain and transactional ones in turn, of so many objects."""
    return [(f"o{i % objects}", ("plain", "exact")[i % 2], {**does}) for i in range(count)]


def load(count: int, objects: int, chance: random.Random, *, work: float = 0.004) -> list[Load]:
    """Messages as life brings them: most end well; some fail, die, come back, have no object."""
    made: list[Load] = []
    for _ in range(count):
        does = life(chance, work)
        object_id = None if chance.random() < 0.1 else f"o{chance.randrange(objects)}"
        made.append((object_id, chance.choice(("plain", "exact")), does))
    return made


def load_of_batches(count: int, chance: random.Random) -> list[Load]:
    """The same for batches: of few objects, so that many wait in a row, and with less trouble,
    which dissolves a batch; now and then one that has no batch among them."""
    made: list[Load] = []
    for topic in ("batch", "group"):
        for _ in range(count):
            does = life(chance, 0.002) if chance.random() < 0.2 else {}
            does["raises"] = chance.random() < 0.3
            object_id = None if chance.random() < 0.1 else f"{topic}{chance.randrange(4)}"
            made.append((object_id, topic if chance.random() < 0.95 else "exact", does))
    return made


def life(chance: random.Random, work: float) -> dict[str, Any]:
    """What one message does."""
    does: dict[str, Any] = {"work": round(chance.uniform(0, work), 4)}
    dice = chance.random()
    if dice < 0.05:
        does["fails"] = chance.choice((1, 1, 2))
    elif dice < 0.06:
        does["fails"] = 99
    elif dice < 0.065:
        does["reject"] = True
    elif dice < 0.09:
        does["later"] = 1
    return does


def extend(messages: list[Load], objects: int, chance: random.Random) -> None:
    """A share of the plain and the transactional ones sends; some of a chain, of limits, slow ones.

    Slow ones are plain, as a transaction of that length is the only one on SQLite.
    """
    for _, topic, does in messages:
        if topic in ("plain", "exact", "group") and chance.random() < 0.2:
            does["sends"] = True
    for topic, count in ((CHAIN, 4), (LIMITED, chance.randrange(3)), (METERED, 1)):
        for _ in range(count):
            does = life(chance, 0.004)
            if topic == CHAIN and chance.random() < 0.1:
                does["reject"] = True
            messages.append((f"o{chance.randrange(objects)}", topic, does))
    if chance.random() < 0.1:
        messages.append((None, "plain", {"slow": SLOW_SECONDS, "sends": True}))


def everything(chance: random.Random) -> list[Load]:
    """Every kind, and now and then one that kills its process."""
    messages = load(30, OBJECTS, chance) + load_of_batches(15, chance)
    extend(messages, OBJECTS, chance)
    if chance.random() < 0.02:
        place = chance.randrange(len(messages))  # a batch has it in its middle
        messages[place] = (*messages[place][:2], deadly(chance))
    if chance.random() < 0.01:
        messages.append((None, CHAIN, {**deadly(chance), "crashes": 99}))
    return messages


def deadly(chance: random.Random) -> dict[str, Any]:
    """What kills its process, in some tries or in all."""
    return {"crash": chance.choice(DEADLY), "crashes": chance.choice((1, 1, 2, 99))}


def batches(chance: random.Random) -> list[Load]:
    """Large batches, which little dissolves; a few kill their process in the middle of it."""
    made: list[Load] = []
    for _ in range(200):
        topic, name = chance.choice(("batch", "group")), chance.randrange(21)
        does: dict[str, Any] = {}
        if (drawn := chance.random()) < 0.02:
            does = {"fails": chance.choice((1, 2, 99)), "raises": chance.random() < 0.5}
        elif drawn < 0.023:
            does = {"crash": chance.choice(DEADLY)}
        made.append((f"{topic}{name}" if name else None, topic, does))
    return made


def limits(_: random.Random) -> list[Load]:
    """More than the limits let through, at any time."""
    return [(None, topic, {"work": 0.03}) for topic in (LIMITED,) * 75 + (METERED,) * 25]


def nothing(_: random.Random) -> list[Load]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """sends: what a producer sends at once, as long as not more than `most` wait. kill, pause,
    stop, cut, crash: the seconds between two such faults, 0: there are none; `late`: the share of
    sends beside which one commits late. keyed: sends with a unique key beside each; cancels:
    operators do so; jobs: the share of sends beside which a job is sent. consumer: options of the
    consumers. terms: of the judge, by name; limited and metered topics are judged wherever there
    are any.
    """

    sends: Callable[[random.Random], list[Load]]
    producers: int = 2
    most: int = 1500
    kill: float = 2.0
    pause: float = 0.0
    stop: float = 0.0
    cut: float = 0.0
    crash: float = 0.0
    late: float = 0.0
    keyed: int = 0
    cancels: bool = False
    jobs: float = 0.0
    chained: bool = False  # one at least kills whoever handles it, and has an on_dead
    finishes: bool = True  # in the end all that was sent is waited for
    lease: float = 2.0
    look_seconds: float = 0.1
    consumer: Mapping[str, Any] = field(default_factory=dict)
    terms: Mapping[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "everything": Scenario(
        sends=everything,
        pause=5.0,
        stop=4.0,
        cut=0.7,
        crash=20.0,
        late=0.2,
        keyed=3,
        cancels=True,
        jobs=0.3,
        chained=True,
        terms={"ticks": SCHEDULES},
    ),
    # One producer, so no late commits, no reruns: effects come in the order of their messages.
    "batches": Scenario(
        sends=batches,
        producers=1,
        most=3000,
        kill=1.0,
        consumer={"batch": 200, "group": 50},
        terms={"in_order": True},
    ),
    # There is always one to start: as many start as may, no more, whoever is killed. How many is in
    # the report: a machine with other work starts fewer.
    "limits": Scenario(
        sends=limits,
        most=2000,
        finishes=False,
        kill=4.0,
        lease=5.0,
        look_seconds=0.02,
        consumer={"threads": 4},
        terms={"per_second": PER_SECOND, "max_running": MAX_RUNNING},
    ),
    # Instances that come and go in order, beside late commits: they lose nothing that they hold.
    "comings": Scenario(
        sends=lambda chance: load(30, 300, chance),
        kill=0.0,
        stop=2.5,
        late=0.2,
        lease=30.0,
        consumer={"all_topics": False, "workers": 4},
        terms={"orderly": True},
    ),
    # What a failover loses is named; of what only a history tells, there is little.
    "losses": Scenario(
        sends=lambda chance: load(20, 100, chance),
        most=500,
        kill=2.0,
        crash=8.0,
        consumer={"all_topics": False},
    ),
    "ticks": Scenario(sends=nothing, kill=3.0, terms={"ticks": SCHEDULES}),
}
