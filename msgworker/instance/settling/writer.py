"""Write outcomes, and what `on_done` and `on_dead` send, until it is known what was written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db.database import Trouble
from msgworker.db.errors import Fate, reason_of, trouble, until_known
from msgworker.errors import ConfigError, MsgworkerError, SchemaError
from msgworker.instance.observers import facts
from msgworker.instance.role import Outage
from msgworker.instance.running.handler import Registry
from msgworker.instance.running.in_flight import TOPIC, Lane
from msgworker.instance.running.outcome import DONE
from msgworker.instance.state import Connector, Setup, Shared
from msgworker.message import (
    UNWRITABLE,
    Outcome,
    Outgoing,
    Settled,
    Settlement,
    State,
    becomes,
    topic_of,
)
from msgworker.payload import clean, decode, fitting
from msgworker.producing import outgoing
from msgworker.store import done
from msgworker.store import settle as store
from msgworker.store.done import NotTogether
from msgworker.store.rows import Row, RowKept
from msgworker.store.send import check_limits, notify, send_all
from msgworker.table.tables import Tables

# --- What handlers ask of the table, checked at the start: later, outcomes could not be written.


def check(registry: Registry, tables: Tables, connector: Connector) -> None:
    """Raise SchemaError if handlers delete what is done and the table gives ids again, or send
    messages about others (`on_done`, `on_dead`) and it cannot hold those, ConfigError if it has no
    characters for a topic, or cannot hold one of theirs, HandlerError if those lead in a circle;
    raises the database's error if they delete and this login may not."""
    registry.refuse_circles()
    codec = tables.codec_of("topic")
    for topic in list(registry.handlers):
        if topic is not None and fitting(topic, codec) != topic:
            raise ConfigError(
                f"topic {topic!r:.60} of a handler: column {tables.names['topic']} has no "
                f"characters for it ({codec}), so no message can have it"
            )
    if registry.deletes:
        if tables.reuses_ids:
            raise SchemaError(done.ids_given_again(tables.spec.name, tables.names["msg_id"]))
        with connector.once() as link, link.transaction() as conn:
            done.delete_none(conn, tables)
    _check_follow_ups(registry, tables)


# --- Messages about messages: what `on_done` and `on_dead` of a handler send.
#
# They are sent in the transaction that writes the outcome. The handler of every topic sends none
# about those that it sends: otherwise each message about a message would cause another one.


def _check_follow_ups(registry: Registry, tables: Tables) -> None:
    telling = [h for h in list(registry.handlers.values()) if h.on_done or h.on_dead]
    if not telling:
        return
    named = telling[0].topic or "every topic"
    what = f"on_done and on_dead (of the handler of {named}) send messages"
    for role in ("topic", "payload"):
        if not tables.has(role):
            raise SchemaError(
                f"{what} with a topic and a payload, and table {tables.spec.name} has no column "
                f"{role}: name it, MessageTable({role}=...), or add one"
            )
    if tables.unfilled:
        raise SchemaError(
            f"{what}, and msgworker does not fill column {', '.join(tables.unfilled)} of table "
            f"{tables.spec.name}, which is NOT NULL and has no default; give it one"
        )
    asked: list[dict[str, Any]] = [{"b_topic": h.on_done} for h in telling if h.on_done]
    asked += [{"b_topic": h.on_dead, "b_object_id": None} for h in telling if h.on_dead]
    for row in asked:
        try:
            check_limits(tables, row)
        except ConfigError as error:
            raise ConfigError(f"on_done or on_dead: {error}") from None


def follow_ups(
    registry: Registry, tables: Tables, row: Row, outcome: Outcome, error: str | None
) -> tuple[Outgoing, ...]:
    """What is sent with this outcome of a message, claimed as `row`."""
    _, state = becomes(outcome, row.tries, max_tries=tables.spec.max_tries)
    if state is State.DONE:
        return _about(registry, tables, row, error=None)
    if state is State.DEAD and outcome is not Outcome.CANCELLED:
        return _about(registry, tables, row, error=error or "")
    return ()


def send_about_dead(
    conn: Connection, registry: Registry, tables: Tables, died: Sequence[Row], text: str
) -> bool:
    """Send what `on_dead` says about messages that died as they were given back, with this error.
    Whether anything was sent."""
    about = [one for row in died for one in follow_ups(registry, tables, row, Outcome.DEAD, text)]
    send_all(conn, tables, about)
    return bool(about)


def _about(registry: Registry, tables: Tables, row: Row, error: str | None) -> tuple[Outgoing, ...]:
    """error: None = done."""
    topic = topic_of(row.topic)
    handler = registry.get(topic)
    wanted = None if handler is None else handler.follow_ups(topic)[error is not None]
    if wanted is None:
        return ()
    about = {
        "msg_id": row.msg_id,
        "topic": topic,
        "object_id": row.object_id if row.odd is None else None,
        "outcome": "done" if error is None else "dead",
        "error": None if error is None else fitting(error, tables.codec_of("payload")),
        "tries": row.tries + (error is not None),
        "payload": _payload(row),
    }
    # A message about a dead one has no object: it would wait behind all messages of the object, and
    # where dead ones block the object, until an operator acts.
    object_id = about["object_id"] if error is None else None
    try:
        made = outgoing(tables, wanted, about, object_id=object_id)
    except MsgworkerError:  # too long with that payload, or an odd object
        made = _shorter(tables, wanted, about)
    headers = row.headers  # so that it is in the trace of the message that it is about
    if tables.max_headers and isinstance(headers, str) and headers.isascii():
        made.row["b_headers"] = headers
    return (made,)


def _payload(row: Row) -> Any:
    """The payload as it was sent; None if it is no JSON, or was too long to be read."""
    if row.flaw is not None:
        return None
    try:
        return decode(row.payload, None)
    except MsgworkerError:
        return None


def _shorter(tables: Tables, topic: str, about: dict[str, Any]) -> Outgoing:
    """Without the payload, and of the error as much as there is room for."""
    object_id, error = about["object_id"], about["error"]
    named = {"object_id": None if object_id is None else clean(str(object_id), 190)}
    plain = about | named | {"payload": None}
    for most in () if error is None else (2000, 200):
        with suppress(MsgworkerError):
            return outgoing(tables, topic, plain | {"error": clean(error, most)})
    return outgoing(tables, topic, plain | {"error": None if error is None else clean(error, 20)})


# --- The settlements of finished lanes, and their results if the answer was lost.


def what_became(
    conn: Connection, tables: Tables, lanes: Mapping[int, Lane], me: str
) -> dict[int, Settled]:
    """What became of lanes whose settle got no answer, by the rows that are flagged by us.

    The lane's own row is: nothing was written, it is left out. Its next row is: the lane continues.
    Neither: it has ended, or is lost. It locks the rows, which waits for a COMMIT under way.
    """
    ids = set(lanes) | {i for lane in lanes.values() if (i := lane.next_id) is not None}
    flagged = done.look(conn, tables, ids, me=me)
    became: dict[int, Settled] = {}
    for msg_id, lane in lanes.items():
        if msg_id not in flagged:
            advanced = lane.next_id in flagged
            became[msg_id] = Settled.ADVANCED if advanced else Settled.ENDED
    return became


assert len(Settlement._fields) == 11, "settlements() gives each of them"


def settlements(lanes: Sequence[Lane], setup: Setup, shared: Shared) -> list[Settlement]:
    """`settlement` of each; a faster path for those that are done, as nearly all are."""
    stays, controls = shared.stop.requested.is_set() or shared.quiesce.active, shared.controls
    if stays or controls.paused_ids or setup.registry.has_follow_ups:
        return [settlement(lane, setup, shared) for lane in lanes]
    found: list[Settlement] = []
    apart, done, new = controls.apart, Outcome.DONE, tuple.__new__
    deletes_done = setup.registry.deletes_done if setup.registry.deletes else None
    for lane in lanes:
        row, place, rows = lane.row, lane.place + lane.width, lane.rows
        ahead = rows[place] if place < len(rows) else None
        stops = apart and ahead is not None and topic_of(ahead[TOPIC]) in apart
        if lane.result is DONE and row.flaw is None and not stops:
            next_id = None if ahead is None else ahead[0]
            # Its own `__new__`, with defaults and names, takes three times as long.
            deletes = deletes_done is not None and deletes_done(row)
            values = (row.msg_id, done, next_id, None, 0.0, row.tries, 0, None, (), None, deletes)
            one = new(Settlement, values)
        else:
            one = settlement(lane, setup, shared)
        found.append(one)
    return found


def settlement(lane: Lane, setup: Setup, shared: Shared) -> Settlement:
    """The settlement of a lane: only a done message passes the flag on, but not during a stop, nor
    while quiescing, nor to a message whose topic is paused or limited, or whose job is
    paused."""
    result = lane.result or DONE
    row = lane.row
    tries = row.tries if row.flaw is None or row.odd is None else None
    if result is DONE or result.outcome is Outcome.DONE:
        next_id = lane.next_id
        if next_id is not None and not _may_continue(lane, shared):
            next_id = None
        sends = result.sends + follow_ups_of(lane, setup)
        deletes = not result.has_items and setup.registry.deletes_done(row)
        return Settlement(
            row.msg_id, Outcome.DONE, next_id, None, 0.0, tries, sends=sends, deletes=deletes
        )
    return Settlement(
        row.msg_id,
        result.outcome,
        None,
        result.error,
        result.delay_seconds,
        tries,
        row.later_times,
        result.trace,
        follow_ups_of(lane, setup),
        time.monotonic() - lane.started_at if lane.started_at else None,
    )


def follow_ups_of(lane: Lane, setup: Setup) -> tuple[Outgoing, ...]:
    """The messages about a message that are sent with its outcome."""
    if not setup.registry.has_follow_ups:
        return ()
    result, row = lane.result or DONE, Row(*lane.rows[lane.place])  # with its payload, see `keep`
    return follow_ups(setup.registry, setup.tables, row, result.outcome, result.error)


def _may_continue(lane: Lane, shared: Shared) -> bool:
    if shared.stop.requested.is_set() or shared.quiesce.active:
        return False
    controls = shared.controls
    ahead = lane.next_row if controls.apart else None
    return ahead is None or not controls.is_apart(ahead)


# --- Write the outcomes of a batch on a connection of its own, until it is known what was written.

DEADLOCK_SECONDS = 0.2  # the longest pause before a settle is sent again after a rollback
ASK_AGAIN_SECONDS = 60.0
"""How long a spare writer that got no connection is not used."""


class _Outage(Outage):
    """After a rollback by the database the next try comes soon, because other lanes wait."""

    def failed(self, error: BaseException) -> float:
        pause = super().failed(error)
        return min(pause, DEADLOCK_SECONDS) if trouble(error) is Trouble.AGAIN else pause


@dataclass(eq=False)
class Writer:
    """Writes one batch at a time, in the thread that holds `lock`.

    spare: used only beside another writer, if it gets a connection at once; it needs no more than
    one. since: when its present batch began (monotonic), None = it has none. leaving: how many
    lanes end with that. The thread that holds the lock writes both, all threads read them.

    on_leaving: called when some lanes are `leaving`."""

    _setup: Setup
    _shared: Shared
    spare: bool = False
    on_leaving: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.leaving = 0
        self.link = self._shared.connector.new(spare=self.spare)
        self.lock = self.link.lock
        self.since: float | None = None
        self.outage = _Outage(
            self._shared.log, "settle", self._shared.away, self._setup.urgent_pause
        )
        self._refused_at: float | None = None

    @property
    def may_open(self) -> bool:
        """Whether to try it: not soon after a spare one got no connection."""
        if not self.spare or self.link.together is not None:
            return True
        at = self._refused_at
        return at is None or time.monotonic() - at >= ASK_AGAIN_SECONDS

    def open(self) -> bool:
        """Open the connection of a spare one; returns whether it can write. The caller has the
        lock."""
        if not self.spare:
            return True
        try:
            self.link.open()
        except Exception as error:
            self._refused_at = time.monotonic()
            text = "no second connection for settles, continuing with one: %s"
            self._shared.log.debug(text, reason_of(error))
            return False
        return True

    def close(self) -> None:
        """Return the connections, after the batch that is being written."""
        with self.lock:
            self.link.close()

    def write(self, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        """Write until the result is known; lanes that are not in it are lost."""
        shared, became = self._shared, dict[int, Settled]()

        def left() -> dict[int, Lane]:
            return {i: lane for i, lane in lanes.items() if i not in became} if became else lanes

        # What `until_known` calls, in its order; it says what their results mean.
        def send() -> dict[int, Settled]:
            if lanes_left := left():
                self.write_once(list(lanes_left.values()), me, became)
            return became

        def look() -> dict[int, Settled] | None:
            if lanes_left := left():
                became.update(self._look(lanes_left, me))
            return None if left() else became

        def judge(error: BaseException, looking: bool) -> Fate:
            kind = trouble(error)
            if kind is Trouble.OTHER:
                return Fate.RAISE
            if kind is Trouble.AGAIN:
                return Fate.AGAIN
            shared.identity.abandoned(me, left())
            return Fate.UNKNOWN

        def may_continue() -> bool:
            # Under a lost id the recovering instance may have the rows locked.
            return shared.identity.is_ours(me) and not shared.stop.gave_up()

        try:
            known = until_known(
                *(send, look, may_continue, self.outage),
                judge=judge,
                before_again=lambda: None if may_continue() else became,
            )
        finally:
            self.leaving = 0
        return became if known is None else known

    def _look(self, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        with self.link.transaction() as conn:
            return what_became(conn, self._setup.tables, lanes, me)

    def write_once(self, lanes: Sequence[Lane], me: str, became: dict[int, Settled]) -> None:
        """One try; `became` is filled with what is known to be committed, also when it raises."""
        tables = self._setup.tables
        batch = settlements(lanes, self._setup, self._shared)
        self.leaving = [s.next_id for s in batch].count(None)
        if self.leaving:
            self.on_leaving()
        plain = {s.outcome for s in batch} == {Outcome.DONE}
        sending = any([s.sends for s in batch])
        # Of several that are deleted some may stay: then it is two statements.
        deletes = self._setup.registry.deletes and any([s.deletes for s in batch])
        checked = tables.on_update or (deletes and len(batch) > 1)
        alone = tables.database.arrays and plain and not sending and not checked
        for in_steps in (False, True):
            try:
                with self._statement() if alone else self.link.transaction() as conn:
                    written = store.settle(
                        conn, tables, batch, me=me, in_steps=in_steps, sending=sending
                    )
                    if sending:
                        notify(conn, self._setup.channel)
                    kept = self._kept(conn, written, me)
                became |= {i: settled for i, settled in written.items() if i not in kept}
                for lane in lanes if kept else ():
                    if lane.row.msg_id in kept:
                        one = settlement(lane, self._setup, self._shared)
                        became[one.msg_id] = self._write_alone(lane, one, me)
                return
            except NotTogether:
                continue
            except done.FlagMissing:
                break
            except Exception as error:
                if not store.of_a_row(error, deletes=deletes):
                    raise
                break
        # One by one, so that a lane that cannot be settled does not block the others.
        for lane, one in zip(lanes, batch, strict=True):
            became[one.msg_id] = self._write_alone(lane, one, me)

    def _kept(self, conn: Connection, written: dict[int, Settled], me: str) -> set[int]:
        """Those that are still flagged by us although their outcome was sent: the database changed
        nothing, without an error."""
        if Settled.LOST not in written.values() or not self._setup.tables.has("claimed_by"):
            return set()
        lost = [msg_id for msg_id, settled in written.items() if settled is Settled.LOST]
        return done.still_mine(conn, self._setup.tables, lost, me=me)

    def _statement(self) -> AbstractContextManager[Connection]:
        """The connection for a batch in one statement; a spare writer has none for these alone."""
        return self.link.single() if self.spare else self.link.statement()

    def _write_alone(self, lane: Lane, one: Settlement, me: str) -> Settled:
        """Write one outcome; if the database refuses it, what it does not refuse: a failed try,
        not a done one, fewer texts, fewer messages."""
        log, row = self._shared.log, lane.row
        whole: Settlement | None = None  # with its error text, while it is tried without
        while True:
            try:
                return self._write_one(one, me)
            except Exception as error:
                if trouble(error) not in (Trouble.RACE, Trouble.OTHER):
                    raise
                kept, no_text = isinstance(error, RowKept), one.error in (None, UNWRITABLE)
                if one.next_id is not None:  # perhaps it refuses to flag that one
                    one = one._replace(next_id=None)
                elif one.deletes:  # perhaps a row of another table refers to it, until the COMMIT
                    one = one._replace(deletes=False)
                elif one.outcome is Outcome.DONE and (kept or not one.sends):
                    cannot = f"it cannot be written as done: {reason_of(error)}"
                    why = str(error) if kept else cannot
                    log.error("message %s: %s; its try fails", row.msg_id, why, extra=facts(row))
                    one = self._unsent(lane, why, error)
                elif one.sends and whole is None and not no_text:  # perhaps it refuses the text
                    whole, one = one, one._replace(error=UNWRITABLE, trace=None)
                elif one.sends:
                    one, whole = self._without_sends(lane, whole or one, error), None
                elif no_text and one.trace is None:
                    text = "message %s: its outcome is not written: %s"
                    # Without the driver's own text, which may show the row.
                    shown = None if isinstance(error, DBAPIError) else error
                    log.error(text, row.msg_id, reason_of(error), exc_info=shown, extra=facts(row))
                    self._shared.identity.cannot_write(me, [one.msg_id])
                    return Settled.LOST
                else:  # the table may refuse a text (another character set, a shorter column)
                    log.warning("message %s: %s", row.msg_id, reason_of(error), extra=facts(row))
                    words = UNWRITABLE if one.trace is None else one.error
                    one = one._replace(error=words, trace=None)

    def _write_one(self, one: Settlement, me: str) -> Settled:
        tables = self._setup.tables
        with self.link.transaction() as conn:
            settled = store.settle_one(conn, tables, one, me=me)
            if settled is Settled.LOST:
                done.check_not_kept(conn, tables, one.msg_id, me=me)
            if one.sends:
                notify(conn, self._setup.channel)
            return settled

    def _unsent(self, lane: Lane, why: str, error: Exception) -> Settlement:
        """The settlement of a lane that cannot be written as done: its try fails."""
        handler = self._setup.registry.get(topic_of(lane.row.topic))
        lane.result = self._shared.outcomes.unsent(why, error, handler, lane.row)
        return settlement(lane, self._setup, self._shared)

    def _without_sends(self, lane: Lane, one: Settlement, error: Exception) -> Settlement:
        """The settlement of which the database refuses a message. If the handler has sent some, its
        try fails, since they would be lost; a message of `on_done` or `on_dead` is left out."""
        row = lane.row
        why = f"a message that is sent with its outcome was refused: {reason_of(error)}"
        self._shared.log.error("message %s: %s", row.msg_id, why, extra=facts(row))
        if lane.result is not None and lane.result.sends:
            return self._unsent(lane, why, error)
        return one._replace(sends=())
