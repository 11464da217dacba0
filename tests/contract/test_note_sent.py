"""What the audit records of a message that an operator sends."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from msgworker.errors import ConfigError, KeyUsed, PayloadError


def test_a_send_of_an_operator_is_recorded_as_over_by_one_statement(app):
    ops, sent = app.ops.acting(actor="ann"), []
    with app.engine.begin() as conn:
        msg_id = app.send(conn, "t", {}, object_id="A")
        sa.event.listen(conn, "before_cursor_execute", lambda *told: sent.append(told[2]))
        op_id = ops.note_sent(conn, msg_id, topic="t", reason="by hand")
    assert [text.split()[0] for text in sent] == ["INSERT"]
    op = app.ops.operation(op_id)
    assert (op.kind, op.actor, op.reason) == ("send", "ann", "by hand")
    assert (op.steps, op.last_id, op.matched, op.changed, op.skipped) == (1, msg_id, 1, 1, 0)
    assert op.finished_at is not None
    assert op.finished_at >= op.started_at


def test_an_operator_sends_in_one_transaction_with_its_record(app):
    ops = app.ops.acting(actor="ann", source="web 10.0.0.7", key="k1")
    sent = ops.send("t", {"n": 1}, object_id="A", reason="by hand", priority=2)
    info, op = app.ops.show(sent.msg_id), app.ops.operation(sent.op_id)
    assert (info.object_id, info.priority, json.loads(info.payload)) == ("A", 2, {"n": 1})
    assert (op.kind, op.actor, op.reason, op.source) == ("send", "ann", "by hand", "web 10.0.0.7")
    assert op.filter == {"ids": [sent.msg_id], "topic": "t"}
    with pytest.raises(KeyUsed):
        ops.send("t", object_id="B")
    with pytest.raises(PayloadError):
        app.ops.send("t", object())
    with pytest.raises(ConfigError, match="reason"):
        app.ops.send("t", reason="r" * 10_000)
    assert [one.msg_id for one in app.ops.find()] == [sent.msg_id]
    assert [one.op_id for one in app.ops.audit()] == [sent.op_id]
