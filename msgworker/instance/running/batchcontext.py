"""What a handler of a batch may use besides its messages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Unpack

from sqlalchemy import Connection

from msgworker.dialects import follows, is_aborted
from msgworker.errors import HandlerMisuse
from msgworker.instance.running.context import Cancellable, Context, Sends
from msgworker.instance.running.traces import came_from
from msgworker.logs import logger
from msgworker.message import Message, Outgoing
from msgworker.payload import quoted
from msgworker.producing import AllSendOptions


class BatchContext(Context):
    """The second argument of a handler with batch=..., beside its messages.

    instance_id, cancelled: as in Context. connection, session: as in Context; their transaction
    settles all messages of the batch. attempt: 1, except where one message that has failed before
    runs alone. log: its records carry the topic, the try and how many messages there are
    (`messages`), and the message where there is one. A handler with group=... gets a Context.
    """

    __slots__ = ("_ended", "_failures", "_ids", "_messages")

    def __init__(
        self,
        messages: Sequence[Message[Any]],
        instance_id: str,
        attempt: int,
        running: Cancellable,
        connection: Connection | None = None,
        runtime: Sends | None = None,
    ) -> None:
        super().__init__(messages[0], instance_id, attempt, running, connection, runtime=runtime)
        self._messages = messages
        self._ended = False
        self._ids: set[Any] | None = None
        self._failures: dict[Any, BaseException] = {}

    def fail(self, message: Message[Any], error: Exception) -> None:
        """Fail one message of the batch, as if its handler had raised `error`; the others go on.

        It counts a try and waits for its back-off; Reject and RetryLater mean what they mean when
        raised. What follows it in its object waits for it. Returns at once: return from the handler
        as usual. With transactional=True the transaction is then rolled back and the handler called
        again without these messages, so that nothing is committed for them; if it names further
        messages again and again, each message runs alone. If an error has ended the transaction,
        as any does on PostgreSQL outside of a savepoint, or the session, only the first failure
        that was named counts. An error that was not raised gets the traceback of this call.

        Raises HandlerMisuse if it is no message of this batch, was failed already, or `error` is
        not an exception.
        """
        if self._ended:
            raise HandlerMisuse("ctx.fail after the handler has returned; call it before that")
        if not self._is_ours(message):
            raise HandlerMisuse(
                f"ctx.fail takes a message of this batch, got {_named(message)}; pass one of the "
                "messages that the handler was called with"
            )
        if not isinstance(error, Exception):
            raise HandlerMisuse(
                f"ctx.fail takes an exception, got {quoted(error)}; for example "
                'ctx.fail(message, ValueError("no address"))'
            )
        if message.msg_id in self._failures:
            raise HandlerMisuse(
                f"message {message.msg_id} was failed already in this batch; fail each once"
            )
        came_from(error, sys._getframe(1))
        self._failures[message.msg_id] = error

    def send(
        self,
        topic: str,
        payload: Any = None,
        *,
        of: Message[Any] | None = None,
        **options: Unpack[AllSendOptions],
    ) -> Any:
        """As Context.send. of: the message of this batch with whose outcome it is sent.

        With transactional=True all outcomes are one transaction, and `of` says no more than whose
        unique key is free for what is sent (default: that of the first message). Without it the
        outcomes of a batch are written apart, so `of` is needed: what is sent for a message that
        fails, or is lost, is not sent, while the others send theirs.

        Raises what Context.send raises; HandlerMisuse without `of`, where it is needed, and if it
        is no message of this batch.
        """
        if of is None and self._connection is None:
            raise HandlerMisuse(
                "ctx.send sends with the outcome of one message, and those of a batch are written "
                "apart: say of which, ctx.send(..., of=message), or add transactional=True"
            )
        if of is not None and not self._is_ours(of):
            raise HandlerMisuse(
                f"ctx.send takes of=..., a message of this batch, got {_named(of)}; pass one of "
                "the messages that the handler was called with"
            )
        message = self._outgoing(topic, payload, **options)
        return self._send(message, self._msg.msg_id if of is None else of.msg_id)

    def _is_ours(self, message: Any) -> bool:
        if self._ids is None:
            self._ids = {one.msg_id for one in self._messages}
        return isinstance(message, Message) and message.msg_id in self._ids

    def fan_out(self, *_: Any, **__: Any) -> NoReturn:
        """Raises HandlerMisuse: items are recorded under one message."""
        options = "batch=..." if self._connection is None else "batch=... and transactional=True"
        raise HandlerMisuse(
            "ctx.fan_out records items under one message, and this handler gets a list; leave out "
            f"{options} to fan out over the items of each message"
        )

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger under `msgworker.handler`."""
        if self._log is None:
            first = self._messages[0]
            one = len(self._messages) == 1
            extra = {
                "instance": self.instance_id,
                "msg_id": first.msg_id if one else None,
                "object_id": first.object_id if one else None,
                "topic": first.topic,
                "try": self.attempt,
                "messages": len(self._messages),
            }
            self._log = logging.LoggerAdapter(logger("msgworker.handler", of_user=True), extra)
        return self._log

    def _ended_with(self) -> dict[Any, list[Outgoing]]:
        """For the package: the handler has returned; what a plain one has sent, by the msg_id of
        the message with whose outcome it is sent."""
        self._ended = True
        sent: dict[Any, list[Outgoing]] = {}
        for msg_id, message in self._sent() or ():
            sent.setdefault(msg_id, []).append(message)
        return sent

    def _counted(self) -> dict[Any, BaseException]:
        """For the package: the failures that the handler has named, by msg_id.

        Only the first one if an error has ended the transaction or the session: those named later
        may have failed for that reason alone. Raises the first one if it is such an error itself:
        then the cause is unknown, and each message runs alone.
        """
        if not self._failures or not self._is_broken():
            return self._failures
        msg_id, error = next(iter(self._failures.items()))
        if follows(error):
            raise error
        return {msg_id: error}

    def _is_broken(self) -> bool:
        if self._session is not None and not self._session.is_active:
            return True
        return self._connection is not None and is_aborted(self._connection)


def _named(message: Any) -> str:
    return f"message {message.msg_id}" if isinstance(message, Message) else quoted(message)
