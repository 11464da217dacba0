"""Limits of topics over all instances: what is recorded, and what is free now.

A permit is the flag itself: the messages of a topic that are at 1, of whichever instance, are
counted. So it comes back with the outcome, in the same transaction, or when recovery gives back the
row of a dead instance; nothing else has to be held, renewed or given back.
"""

from __future__ import annotations

import sqlalchemy as sa

from msgworker import dialects
from msgworker.dialects import UtcDateTime
from msgworker.store.changing.audit import MAX_TABLE
from msgworker.store.changing.pause import MAX_TOPIC
from msgworker.table import Tables

NAME = "msgworker_limit"


def table(t: Tables) -> sa.Table:
    """One row for each limited topic of each message table.

    full_us: when the bucket of the rate is full, in microseconds since 1970. version: grows with
    every declaration.
    """

    def build() -> sa.Table:
        zero = sa.text("0")
        return sa.Table(
            NAME,
            t.message.metadata,
            sa.Column("table_name", dialects.key_text(MAX_TABLE), primary_key=True),
            sa.Column("topic", dialects.key_text(MAX_TOPIC), primary_key=True),
            sa.Column("max_running", sa.Integer()),
            sa.Column("rate_starts", sa.Integer(), nullable=False, server_default=zero),
            sa.Column("rate_seconds", sa.Integer(), nullable=False, server_default=sa.text("1")),
            sa.Column("burst", sa.Integer(), nullable=False, server_default=sa.text("1")),
            sa.Column("full_us", sa.BigInteger(), nullable=False, server_default=zero),
            sa.Column("version", sa.BigInteger(), nullable=False, server_default=zero),
            sa.Column("declared_by", dialects.plain_text(64), nullable=False),
            sa.Column("declared_at", UtcDateTime(), nullable=False),
            schema=t.spec.schema,
            **dialects.engine_options(t.dialect.name),
        )

    return t.built("limit_table", build)
