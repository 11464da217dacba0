"""The writes of the dashboard, as its pages and its JSON API both offer them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgworker.config import id_of
from msgworker.ops import Ops
from msgworker.ops.results import Repaired
from msgworker.web.access import Role


@dataclass(slots=True, kw_only=True)
class Write:
    """A write. kind: in the path of its page. text: what it does. verb, ops, the function of ops:
    by the words of the kind, unless they are given."""

    kind: str
    text: str
    verb: str = ""
    ops: str = ""
    role: Role = Role.OPERATOR

    def __post_init__(self) -> None:
        self.verb = self.verb or self.kind.partition("-")[0].capitalize()
        self.ops = self.ops or self.kind.replace("-", "_")

    def of(self, ops: Ops) -> Callable[..., Repaired]:
        """The function, of these ops."""
        found: Callable[..., Repaired] = getattr(ops, self.ops)
        return found


# --- On messages, by id or by filter.


@dataclass(slots=True, kw_only=True)
class Change(Write):
    """A write on messages. word: in the paths and names of its endpoints, on one message and on
    many; says: what these say of themselves. orders: what it can do about the order of an object:
    value, name and arguments of ops."""

    word: str
    orders: tuple[tuple[str, str, dict[str, bool]], ...] = ()


_ORDERS: tuple[tuple[str, str, dict[str, bool]], ...] = (
    ("", "skip messages of which a later one has run already", {}),
    (
        "successors",
        "run them, and then in order the failed and dead messages behind them",
        {"with_successors": True},
    ),
    (
        "also_done",
        "run them, and then in order all messages behind them, also those that are "
        "done: their handlers run again",
        {"with_successors": True, "also_done": True},
    ),
    (
        "force",
        "run them out of order (force), also done ones of this selection and those "
        "whose unique key is taken",
        {"force": True},
    ),
)
CHANGES = {
    one.kind: one
    for one in (
        Change(
            kind="rerun",
            text="Failed and dead messages are tried again, with their tries set to 0: each has "
            "all its tries again. Items of a fan-out that are done stay done: only the others run.",
            word="rerun",
            orders=_ORDERS,
        ),
        Change(
            kind="discard",
            text="New, failed and dead messages become dead for good, with the reason as their "
            "error. Their objects continue with what is behind them.",
            word="skip",
        ),
        Change(
            kind="cancel",
            text="New and failed messages are dead at once. Running ones are asked to end: their "
            "instance sees that within a heartbeat.",
            word="cancel",
        ),
        Change(
            kind="acknowledge",
            text="Dead messages stay dead, and are known: they leave the numbers that call for "
            "help, and the failures. What they hold up, an object or a job, stays so until they "
            "are rerun or discarded. One that is rerun and dies again is not acknowledged.",
            word="acknowledge",
        ),
    )
}

EDIT = Write(
    kind="edit",
    text="It keeps its id and its place. It is done only if the message is still as it is shown "
    "here. A dead message stays dead until it is rerun.",
)


# --- About one thing that is no message: a topic, an instance, a schedule, a lock.


@dataclass(slots=True, kw_only=True)
class OnThing(Write):
    """A write about one thing. what: the word before its name. api: method, path and name of its
    endpoint; says: what that says of itself. force: the text of the box that allows more, "" =
    there is none. counts: what would become of the messages that a dry run counts, and of which the
    call reports its progress; "" = it has none. elsewhere: whether it is about a lock that is not
    in the database."""

    what: str
    api: str
    force: str = ""
    counts: str = ""
    elsewhere: bool = False

    @property
    def page(self) -> str:
        """The route to go back to."""
        return f"{self.what}s"

    def about(self, name: str) -> str | int:
        """What ops takes for the name of a thing; raises ConfigError."""
        return id_of(name) if self.what == "job" else name


ON_THINGS = {
    one.kind: one
    for one in (
        OnThing(
            kind="pause-topic",
            ops="pause",
            what="topic",
            text="Its handlers do not start from the next heartbeat of each instance on. Those "
            "that run continue to their end. Messages behind one of this topic wait too.",
            api="POST /topics/{topic:path}/pause pause_topic",
        ),
        OnThing(
            kind="resume-topic",
            ops="resume",
            what="topic",
            text="Its handlers start again.",
            api="POST /topics/{topic:path}/resume resume_topic",
        ),
        OnThing(
            kind="remove-limit",
            role=Role.ADMIN,
            verb="Remove the limits of",
            what="topic",
            text="Its max_running and rate are forgotten, for a topic whose handlers declare none "
            "any more. An instance whose handler does declares them again.",
            api="DELETE /limits/{topic:path} delete_limit",
        ),
        OnThing(
            kind="release",
            what="instance",
            text="Its messages are given back, and a try is counted for each. Do this if its "
            "process is gone for good and others must not wait for its lease to end.",
            force="it is alive: take its lease over, which takes as long as the lease (force)",
            counts="given back",
            api="POST /instances/{instance:path}/release release_instance",
        ),
        OnThing(
            kind="pause-job",
            what="job",
            text="None of its messages starts from the next heartbeat of each instance on. Those "
            "that run continue to their end. Messages behind one of it wait too.",
            api="POST /jobs/{job_id}/pause pause_job",
        ),
        OnThing(
            kind="resume-job",
            what="job",
            text="Its messages start again.",
            api="POST /jobs/{job_id}/resume resume_job",
        ),
        OnThing(
            kind="seal-job",
            what="job",
            text="All of its messages were sent: it completes when they have ended. For one whose "
            "producer has ended before it said so.",
            api="POST /jobs/{job_id}/seal seal_job",
        ),
        OnThing(
            kind="cancel-job",
            what="job",
            text="It is sealed, its message is never sent, and what has not ended of it is "
            "cancelled: new and failed messages are dead at once, running ones are asked to end.",
            counts="cancelled",
            api="POST /jobs/{job_id}/cancel cancel_job",
        ),
        OnThing(
            kind="pause-schedule",
            what="schedule",
            text="It does not fire from now on. Messages that it has sent are handled.",
            api="POST /schedules/{name:path}/pause pause_schedule",
        ),
        OnThing(
            kind="resume-schedule",
            what="schedule",
            text="It fires again, from its next tick on. Those of the pause are left out.",
            api="POST /schedules/{name:path}/resume resume_schedule",
        ),
        OnThing(
            kind="run-schedule",
            ops="run_now",
            verb="Run now",
            what="schedule",
            text="Its message is sent now. Its ticks do not change.",
            api="POST /schedules/{name:path}/run-now run_schedule_now",
        ),
        OnThing(
            kind="delete-schedule",
            role=Role.ADMIN,
            what="schedule",
            text="It is deleted from the table; its messages stay. A program that still declares "
            "it writes it again at its next start.",
            api="DELETE /schedules/{name:path} delete_schedule",
        ),
        OnThing(
            kind="release-lock",
            role=Role.ADMIN,
            verb="Take away",
            what="lock",
            text="Its holder notices at its next renewal, and may work beside the next holder "
            "until then. A lock whose holder has died ends by itself.",
            force="it is held: take it away nevertheless (force)",
            api="POST /locks/{name:path}/release release_lock",
        ),
    )
}
ON_THINGS["release-lock-elsewhere"] = replace(
    ON_THINGS["release-lock"], kind="release-lock-elsewhere", elsewhere=True, api=""
)
