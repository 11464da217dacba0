"""One running fan-out: pass items to their executor, take the results, record them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection

from msgworker.db.database import Trouble
from msgworker.db.errors import Fate, nothing, reason_of, repeatable, trouble, until_known
from msgworker.errors import ConfigError, LostClaim, MsgworkerError
from msgworker.instance.connections import Connections, end_if_forked
from msgworker.instance.fan_out.executors import Fence, ItemResult, Remote, Task, Threads, value_of
from msgworker.instance.observers import facts
from msgworker.instance.role import Outage
from msgworker.payload import fitting
from msgworker.store import items as store
from msgworker.store.items import LOOK, Record
from msgworker.store.send import notify
from msgworker.table.columns import MAX_OBJECT_ID

# --- Keys of items: valid keys, and their recorded form.

MAX_KEY = MAX_OBJECT_ID
MAX_ITEM_NAME = 50


def key_of(
    item: Any, position: int, by: Callable[[Any], Any] | None, name: str, codec: str = ""
) -> tuple[Any, str]:
    """The key of an item as `by` gives it, and as it is recorded: behind the name of the fan-out in
    brackets. codec: of the records. Raises ConfigError for an invalid key, and if the item cannot
    be its own."""
    if by is None and not isinstance(item, str | int | UUID):
        raise ConfigError(
            f"item {position} is a {type(item).__name__}, which cannot be its own key: "
            "give key=, a function from an item to a text or a whole number"
        )
    key = item if by is None else by(item)
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise ConfigError(
            f"the key of item {position} must be a text or a whole number, got {key!r:.80}"
        )
    text = key if isinstance(key, str) else str(key)
    if not text:
        raise ConfigError(f"the key of item {position} is empty")
    if "\x00" in text:
        raise ConfigError(f"the key of item {position} holds a NUL character")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            why = f"the key of item {position} holds half of a surrogate pair"
            raise ConfigError(why) from None
    if name or text[0] == "[":  # else a bare key could look like a named one
        text = f"[{name}]{text}"
    if fitting(text, codec) != text:
        raise ConfigError(
            f"the key {text!r:.80} of item {position} has characters that the database does not "
            "keep: use another one, such as an id or a digest"
        )
    if len(text) > MAX_KEY:
        raise ConfigError(
            f"the key of item {position} has {len(text)} characters"
            f"{' with its name' if name else ''}, at most {MAX_KEY} are kept; "
            "use a shorter one, such as an id or a digest"
        )
    return key, text


def check_name(name: Any) -> None:
    """Raise ConfigError if it cannot be the name of a fan-out."""
    if not isinstance(name, str) or len(name) > MAX_ITEM_NAME:
        raise ConfigError(
            f"name must be a text of at most {MAX_ITEM_NAME} characters: {name!r:.80}"
        )
    if any(ord(ch) < 32 or ch in "[]" for ch in name):
        raise ConfigError(f"name may hold neither brackets nor control characters, got {name!r}")


# --- Write the records of a fan-out's items in batches, only while the message is ours.
#
# After a crash, items that have ended without a record run again. FanOutRun bounds their number.

T = TypeVar("T")
LINGER_SECONDS = 0.1
RACES = 3
MAX_SENDS = 1000
"""How many messages of items wait for their records, before these are written at once."""


class Recorder:
    """Writes the records of one fan-out, in the thread that runs it. at_most: how many may wait.
    on_refused: called with a done item of which the database refuses a message, and with the error;
    returns the text of its record."""

    def __init__(
        self, fence: Fence, *, at_most: int, on_refused: Callable[[Task, BaseException], str]
    ) -> None:
        self._fence = fence
        self._at_most = at_most
        self._on_refused = on_refused
        self._senders: dict[str, Task] = {}
        self._sends = 0
        self._link: Connections = fence.shared.connector.new(beside=True)
        self._link.owner = fence.owner
        what, longest = f"items of message {fence.msg_id}", fence.setup.urgent_pause
        self._outage = Outage(fence.shared.log, what, longest_pause=longest)
        self._waiting: list[Record] = []
        self._there: set[str] = set()
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def count(self) -> int:
        """How many records the message has, of earlier tries and other fan-outs; see store."""
        fence = self._fence
        return self._reading(lambda c: store.count(c, fence.setup.tables, fence.msg_id))

    def known(self, keys: list[str]) -> dict[str, Record]:
        """The records of these keys."""
        fence = self._fence
        return self._reading(lambda c: store.known(c, fence.setup.tables, fence.msg_id, keys))

    def add(self, ended: ItemResult, error: str | None) -> None:
        """Add a result; error: its text."""
        task = ended.task
        if not self._waiting:
            self._since = time.monotonic()
        one = Record(task.text, error is None, task.tries + 1, ended.value, error, ended.sent)
        self._waiting.append(one)
        if one.sends:
            self._senders[task.text] = task
            self._sends += len(one.sends)
        if task.there:
            self._there.add(task.text)

    def due_in(self) -> float:
        """Seconds until the waiting records should be written; 0 or less: now."""
        if not self._waiting:
            return LINGER_SECONDS
        if len(self._waiting) >= self._at_most or self._sends >= MAX_SENDS:
            return 0.0
        return self._since + LINGER_SECONDS - time.monotonic()

    def write(self) -> None:
        """Write the waiting records. Raises LostClaim, and writes nothing, if the claim is lost. In
        an outage it waits as long as that is ours. After a lost COMMIT it reads which records exist
        and writes the same again, whether the COMMIT arrived or not."""
        if not self._waiting:
            return
        try:
            self._write_all(self._waiting)
        except Exception as error:
            if not self._senders or not _is_refusal(error):
                raise
            # One by one, so that only the items whose messages are refused fail.
            while self._waiting:
                self._write_one(self._waiting[0])
                del self._waiting[0]
        self._waiting.clear()
        self._there.clear()
        self._senders.clear()
        self._sends = 0

    def _write_one(self, one: Record) -> None:
        try:
            self._write_all([one])
        except Exception as error:
            if not one.sends or not _is_refusal(error):
                raise
            text = self._on_refused(self._senders[one.key], error)
            self._write_all([replace(one, done=False, value=None, error=text, sends=())])

    def _write_all(self, batch: list[Record]) -> None:
        races = 0

        def look() -> None:
            self._there |= set(self.known([one.key for one in batch]))

        def judge(error: BaseException, looking: bool) -> Fate:
            nonlocal races
            kind = trouble(error)
            races += kind is Trouble.RACE
            hopeless = kind in (Trouble.OTHER, Trouble.REFUSED) or races > RACES
            return Fate.RAISE if hopeless else Fate.UNKNOWN

        send = partial(self._write, batch)
        wrote = until_known(send, look, self._may_continue, self._outage, judge=judge)
        if wrote is False:
            self._fence.lost = True
        if not wrote:
            raise self._fence.lost_claim()

    def close(self) -> None:
        """Give the connection back."""
        self._fence.shared.connector.close(self._link)

    def _write(self, batch: list[Record]) -> bool:
        fence, setup = self._fence, self._fence.setup
        with self._link.transaction() as conn:
            wrote = store.record(
                *(conn, setup.tables, fence.msg_id, batch),
                me=fence.owner,
                tries=fence.row.tries,
                there=self._there,
                total=fence.total,
            )
            if wrote and self._sends:
                notify(conn, setup.channel)
            return wrote

    def _reading(self, read: Callable[[Connection], T]) -> T:
        def send() -> tuple[T]:
            with self._link.statement() as conn:
                return (read(conn),)

        found = until_known(send, nothing, self._may_continue, self._outage, judge=repeatable)
        if found is None:
            raise self._fence.lost_claim()
        return found[0]

    def _may_continue(self) -> bool:
        return not self._fence.gone and not self._fence.shared.stop.gave_up()


def _is_refusal(error: BaseException) -> bool:
    """Whether the database may refuse one message or record, and not all."""
    kinds = (Trouble.RACE, Trouble.REFUSED, Trouble.OTHER)
    return not isinstance(error, LostClaim) and trouble(error) in kinds


# --- One running fan-out: pass items to their executor, take the results, record them.
#
# All of it happens in the thread that called `fan_out`, also reading the items; only the items'
# function runs elsewhere. At most BATCH items (or as many as run at once, if that is more) are
# started or ended without a record, which bounds the repeats after a crash. Behind items of their
# sub-key wait all those of a list, and at most QUEUED of a generator.

BATCH = 200
QUEUED = 10_000
POLL_SECONDS = 0.05
LOOK_SECONDS = 0.05
FAILED_KEPT = 10_000


@dataclass(slots=True)
class ItemCounts:
    """The results so far. failed: the first FAILED_KEPT, key -> text."""

    values: list[Any] = field(default_factory=list)
    failed: dict[Any, str] = field(default_factory=dict)
    failed_count: int = 0
    done: int = 0
    ran: int = 0
    held_back: int = 0
    first_error: BaseException | None = None


@dataclass(eq=False)
class FanOutRun:
    """Runs the tasks of one fan-out, in the thread that called `fan_out`; used once. in_flight: how
    many tasks the executor holds at most. listed: how many there are, if they are a list. before:
    the hashes of keys that earlier fan-outs of this try had, too. on_read: called when the records
    of a list are read, with how many the message has, and how many of them are of this list alone.
    text_of: an error as text."""

    _fence: Fence
    _executor: Threads | Remote
    _ended: SimpleQueue[ItemResult]
    in_flight: int
    listed: int | None
    before: Collection[int]
    on_read: Callable[[int, int], None]
    text_of: Callable[[BaseException], str]

    def __post_init__(self) -> None:
        self._open_at_most = max(BATCH, self.in_flight)
        self._queued_at_most = max(QUEUED, self.listed or 0)
        self._recorder = Recorder(self._fence, at_most=BATCH // 2, on_refused=self._refused)
        self._running = 0
        self._behind: dict[Any, deque[Task]] = {}
        self._queued = 0
        self._broken: set[Any] = set()
        self.tally = ItemCounts()

    def run(self, tasks: Iterable[Task]) -> ItemCounts:
        """Run all items that are not done. If it must end early, it waits for the started items,
        records them if the message is still ours, and raises the reason."""
        try:
            for task in self._undone(tasks):
                self._take_ready()
                while self._is_full:
                    self._take()
                self._start(task)
            while self._running:
                self._take()
            self._recorder.write()
        except BaseException:
            self._wind_up()
            raise
        finally:
            self._executor.close()
            self._recorder.close()
        return self.tally

    # ------------------------------------------------------------ what is left to do

    def _undone(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """The tasks that are not done; done ones are counted in the tally."""
        values = self.tally.values
        if not (recorded := self._recorder.count()):
            for task in tasks:
                values.append(None)
                yield task
            return
        of_ours = 0
        for portion in _portions(tasks):
            records = self._recorder.known([task.text for task in portion])
            of_ours += sum([hash(key) not in self.before for key in records])
            if len(values) + len(portion) == self.listed:
                self.on_read(recorded, of_ours)
            for task in portion:
                values.append(None)
                record = records.get(task.text)
                if record is not None and record.done:
                    values[task.place] = value_of(record.value)
                    self.tally.done += 1
                    continue
                if record is not None:
                    task.there, task.tries = True, record.tries
                yield task
            self._take_ready()

    # ------------------------------------------------------------ start and take

    @property
    def _is_full(self) -> bool:
        """Whether no further task is read."""
        running, unrecorded = self._running, self._running + len(self._recorder)
        full = running >= self.in_flight or unrecorded >= self._open_at_most
        return full or self._queued >= self._queued_at_most

    def _take_ready(self) -> None:
        """Take the available results; raises if items may no longer start."""
        end_if_forked(self._fence.setup.pid)  # the user's iterable may have forked
        while True:
            try:
                ended = self._ended.get_nowait()
            except Empty:
                break
            self._returned(ended)
        if self._recorder.due_in() <= 0:
            self._recorder.write()
        self._raise_if_over()

    def _take(self) -> None:
        """Wait for the next result, or until records are due."""
        try:
            pause = max(0.0, min(POLL_SECONDS, self._recorder.due_in()))
            self._returned(self._ended.get(timeout=pause))
        except Empty:
            pass
        self._take_ready()

    def _raise_if_over(self) -> None:
        reason = self._fence.reason()
        if reason is not None:
            raise reason

    def _start(self, task: Task) -> None:
        if task.group is not None:
            if task.group in self._broken:
                self.tally.held_back += 1
                return
            behind = self._behind.get(task.group)
            if behind is not None:
                behind.append(task)
                self._queued += 1
                return
            self._behind[task.group] = deque()
        self._submit(task)

    def _submit(self, task: Task) -> None:
        self._executor.start(task)
        self._running += 1

    def _returned(self, ended: ItemResult) -> None:
        self._running -= 1
        if ended.skipped:
            self._raise_if_over()
            raise ended.error or MsgworkerError(
                f"the executor cancelled item {ended.task.key!r:.80}; the next try runs it"
            )
        self._note(ended)
        if (group := ended.task.group) is not None:
            failed = ended.error is not None or group in self._broken
            self._next_of_group(group, failed=failed)

    def _note(self, ended: ItemResult) -> None:
        task, tally = ended.task, self.tally
        tally.ran += 1
        text = None
        if ended.error is None:
            tally.done += 1
            tally.values[task.place] = value_of(ended.value)
        else:
            text = self._failed(task, ended.error)
        if not ended.recorded:
            self._recorder.add(ended, text)

    def _failed(self, task: Task, error: BaseException) -> str:
        tally, text = self.tally, self.text_of(error)
        tally.failed_count += 1
        tally.first_error = tally.first_error or error
        if len(tally.failed) < FAILED_KEPT:
            tally.failed[task.key] = text
        return text

    def _refused(self, task: Task, error: BaseException) -> str:
        """A done item has sent what the database refuses, so it fails."""
        self.tally.done -= 1
        self.tally.values[task.place] = None
        if task.group is not None:
            self._broken.add(task.group)
        why = MsgworkerError(f"a message that the item sends was refused: {reason_of(error)}")
        return self._failed(task, why)

    def _next_of_group(self, group: Any, *, failed: bool) -> None:
        """Start the next item of a group; after a failed one, no other runs in this try."""
        behind = self._behind[group]
        if failed:
            self._broken.add(group)
            self.tally.held_back += len(behind)
            self._queued -= len(behind)
            del self._behind[group]
        elif behind:
            self._queued -= 1
            self._submit(behind.popleft())
        else:
            del self._behind[group]

    # ------------------------------------------------------------ the early end

    def _wind_up(self) -> None:
        """End early: wait for running items, and record them if the message is still ours."""
        self._fence.closing = True
        self._executor.cancel()
        while self._running:
            ended = self._ended.get()
            self._running -= 1
            if not ended.skipped:
                self._note(ended)
        if self._fence.gone:
            return
        try:
            self._recorder.write()
        except Exception as error:  # the handler must see the reason for the early end instead
            fence, extra = self._fence, facts(self._fence.row)
            text = "message %s: items that ended last are not recorded and run again: %s"
            fence.shared.log.warning(text, fence.msg_id, reason_of(error), extra=extra)


def _portions(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Tasks in lists, for one read of records each; shorter lists if the source is slow."""
    portion: list[Task] = []
    begun = time.monotonic()
    for task in tasks:
        portion.append(task)
        if len(portion) >= LOOK or time.monotonic() - begun > LOOK_SECONDS:
            yield portion
            portion = []
            begun = time.monotonic()
    if portion:
        yield portion
