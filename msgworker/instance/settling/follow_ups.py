"""Messages about messages: what `on_done` and `on_dead` of a handler send.

They are sent in the transaction that writes the outcome. A message of the topic that it would send
to sends none, so that no message about a message makes one about itself.
"""

from __future__ import annotations

from typing import Any

from msgworker.errors import MsgworkerError, SchemaError
from msgworker.instance.running.handler import Handler, Registry
from msgworker.message import Outcome, Outgoing, topic_of
from msgworker.payload import clean, decode
from msgworker.producing import outgoing
from msgworker.store.rows import Row
from msgworker.table import Tables

DEAD = (Outcome.DEAD, Outcome.SPENT)


def check(registry: Registry, tables: Tables) -> None:
    """Raise SchemaError if handlers send about their messages and the table cannot hold that: found
    out when an outcome is written, it would strand the message."""
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


def follow_ups(
    registry: Registry, tables: Tables, row: Row, outcome: Outcome, error: str | None
) -> tuple[Outgoing, ...]:
    """What is sent with this outcome of a message, claimed as `row`."""
    if outcome is Outcome.DONE:
        return _about(registry, tables, row, error=None)
    dies = outcome is Outcome.FAILED and row.tries + 1 >= tables.spec.max_tries
    if outcome in DEAD or dies:
        return _about(registry, tables, row, error=error or "")
    return ()


def _about(registry: Registry, tables: Tables, row: Row, error: str | None) -> tuple[Outgoing, ...]:
    """error: None = done."""
    topic = topic_of(row.topic)
    handler = registry.get(topic)
    wanted = None if handler is None else _topic(handler, error)
    if wanted is None or wanted == topic:
        return ()
    about = {
        "msg_id": row.msg_id,
        "topic": topic,
        "object_id": row.object_id if row.odd is None else None,
        "outcome": "done" if error is None else "dead",
        "error": error,
        "tries": row.tries + (error is not None),
        "payload": _payload(row),
    }
    # A message about a dead one has no object: it would wait behind all others of the object, and
    # where the dead block it until an operator comes.
    object_id = about["object_id"] if error is None else None
    try:
        message = outgoing(tables, wanted, about, object_id=object_id)
    except MsgworkerError:  # too long with that payload, or an odd object
        message = outgoing(tables, wanted, _plain(about))
    headers = row.headers  # so that it is seen in the trace of what it tells of
    if tables.header_room and isinstance(headers, str) and headers.isascii():
        message.row["b_headers"] = headers
    return (message,)


def _topic(handler: Handler, error: str | None) -> str | None:
    return handler.on_done if error is None else handler.on_dead


def _payload(row: Row) -> Any:
    """As it was sent; None if it is no JSON, or was too long to be read."""
    if row.flaw is not None:
        return None
    try:
        return decode(row.payload, None)
    except MsgworkerError:
        return None


def _plain(about: dict[str, Any]) -> dict[str, Any]:
    object_id = about["object_id"]
    error = about["error"]
    return about | {
        "object_id": None if object_id is None else clean(str(object_id), 190),
        "error": None if error is None else clean(error, 2000),
        "payload": None,
    }
