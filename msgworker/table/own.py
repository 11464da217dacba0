"""msgworker's own tables that every instance uses: leases, items, failed tries."""

from __future__ import annotations

import sqlalchemy as sa

from msgworker import dialects
from msgworker.dialects import Dialect, UtcDateTime
from msgworker.table.names import (
    ADDED,
    MAX_ERROR,
    MAX_OBJECT_ID,
)
from msgworker.table.spec import MessageTable


def lease_table(spec: MessageTable, dialect: Dialect, metadata: sa.MetaData) -> sa.Table:
    """Expiring rights to a name; an instance holds one on its own id.

    term grows with every renewal and take-over, so that a take-over names exactly what it saw.
    serves: the message table and the topics of an instance, as JSON, for operators.
    """
    return sa.Table(
        "msgworker_lease",
        metadata,
        sa.Column("name", dialects.key_text(64), primary_key=True),
        sa.Column("kind", dialects.plain_text(20), nullable=False, server_default="instance"),
        sa.Column("term", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("taken_by", dialects.plain_text(64)),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("renewed_at", UtcDateTime(), nullable=False),
        sa.Column("label", dialects.plain_text(200)),
        sa.Column("in_hand", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("serves", dialects.long_text()),
        schema=spec.schema,
        **dialects.engine_options(dialect.name),
    )


def item_table(spec: MessageTable, dialect: Dialect, metadata: sa.MetaData) -> sa.Table:
    """Units of fan-out inside a message: a done item does not run again."""
    return sa.Table(
        "msgworker_item",
        metadata,
        sa.Column("table_name", dialects.key_text(60), primary_key=True),
        sa.Column("msg_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("item_key", dialects.key_text(MAX_OBJECT_ID), primary_key=True),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("tries", sa.SmallInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("item_value", dialects.long_text()),
        sa.Column("last_error", dialects.plain_text(MAX_ERROR)),
        sa.Column("finished_at", UtcDateTime()),
        sa.Column("total", sa.Integer(), info={ADDED: "the number of items left is unknown"}),
        schema=spec.schema,
        **dialects.engine_options(dialect.name),
    )


def try_table(spec: MessageTable, dialect: Dialect, metadata: sa.MetaData) -> sa.Table:
    """Failed tries: their errors and times. A success writes none."""
    table = sa.Table(
        "msgworker_try",
        metadata,
        sa.Column("table_name", dialects.key_text(128), primary_key=True),
        sa.Column("msg_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("try_no", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("kind", dialects.plain_text(20), nullable=False),
        sa.Column("instance", dialects.plain_text(64)),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime(), nullable=False),
        sa.Column("error", dialects.plain_text(MAX_ERROR)),
        sa.Column("fingerprint", dialects.key_text(16)),
        sa.Column(
            "traceback",
            dialects.long_text(),
            info={ADDED: "tries are stored without their tracebacks"},
        ),
        schema=spec.schema,
        **dialects.engine_options(dialect.name),
    )
    sa.Index("msgworker_try_group", table.c.table_name, table.c.fingerprint, table.c.msg_id)
    return table
