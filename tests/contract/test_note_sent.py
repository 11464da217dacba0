"""What the audit records of a message that an operator sends."""

from __future__ import annotations

import sqlalchemy as sa


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
