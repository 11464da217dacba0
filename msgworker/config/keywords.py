"""The settings as keywords of `App`, for type checkers and editors.

Made from `Settings` by `make keywords`: change them there.
"""

from __future__ import annotations

from typing import TypedDict


class Keywords(TypedDict, total=False):
    """Settings of an App."""

    lease_seconds: float
    """How long an instance counts as alive without a heartbeat (one per third of it). Default:
    30.0."""

    poll_seconds: float
    """The longest pause between looks at an idle table. While messages are in flight it is 0.25 s
    at most; a message sent by this process or with a notification is looked for at once. Default:
    1.0."""

    run_limit: int
    """How many messages of an object are read ahead behind its head while `lanes_limit` objects are
    claimed; 0 = none. Fewer objects have longer runs, if those are handled to their end within a
    second: all objects together at most run_limit * lanes_limit messages. Default: 20."""

    lanes_limit: int
    """How many objects an instance claims at once, at most, beside those whose outcome is being
    written. Default: 1000."""

    payload_budget: int
    """Bytes of long payloads (of more than 16 KB) that handlers of an instance hold at once; one
    that is longer is held alone. Shorter ones are read ahead. Default: 67108864."""

    notify: bool
    """On PostgreSQL, wake up workers of other processes when a message is sent. Default: False."""

    foreign_stale_after: float | None
    """Seconds after which a message that a foreign consumer has flagged is recovered; None = never.
    The risk: a foreign consumer that is only slow is then not excluded. Default: None."""

    backoff_seconds: float
    """The pause after a first failed try; each further one is five times as long, plus up to a
    quarter at random, so that retries spread, at most 600 s. 0 = none. A handler's own `wait` has
    precedence. Default: 20.0."""

    history_seconds: float
    """How long the history for charts is kept (a row for each minute with work, topic and
    instance); 0 = this instance writes none. Default: 604800.0."""

    log_every_failure: bool
    """Log every failed try; else a storm of equal ones is summed up each minute. Default: False."""

    tracing: bool
    """Spans of OpenTelemetry for what is sent and handled; needs the extra `otel`, see
    docs/operate/tracing.md. Default: False."""
