"""The only package that knows a database's name.

Everything else asks for a capability (`Dialect`), for a clock expression (`now`, `now_plus`), for a
column type, or what kind of trouble an exception is, and asks it here: what is not in `__all__` is
the package's own. A new database is a new row in DIALECTS.
"""

from msgworker.dialects.capabilities import DIALECTS, NAMES, Dialect
from msgworker.dialects.catalogue import (
    index_is_unique,
    index_names,
    invalid_indexes,
    is_there,
    row_estimate,
)
from msgworker.dialects.clock import now, now_plus, seconds_since
from msgworker.dialects.connections import (
    connecting,
    joining_widely,
    reaching,
    refusal,
    unavailable,
    writing,
)
from msgworker.dialects.ddl import (
    HIDDEN,
    adding,
    adds_many,
    compiler_for,
    created_default,
    dropping_check,
    dropping_index,
    engine_options,
    identity,
    retyping,
    setting_default,
    table_options,
    takes_default,
    taking_null,
    zone_is_lost,
)
from msgworker.dialects.doctor import ANALYZE, CURRENT_USER, SERVER_SETTINGS, plan_of
from msgworker.dialects.drivers import committing_each, listen, sever, wait_for_notice
from msgworker.dialects.engines import (
    dialect_of,
    open_engine,
    parse_url,
    rolled_back,
    same_database,
)
from msgworker.dialects.live import (
    Rule,
    fold_of,
    folded,
    number_room,
    refused_by,
    rules_of,
    text_room,
)
from msgworker.dialects.masking import masked, secrets_of, without
from msgworker.dialects.sqlite import DATABASE_SET_UP, network_mount, set_up_database
from msgworker.dialects.troubles import Trouble, no_connection_left, reason_of, trouble
from msgworker.dialects.types import (
    JsonList,
    KeyText,
    UtcDateTime,
    WholeId,
    big_id,
    key_text,
    long_text,
    plain_text,
    recollated,
    text_length,
)

__all__ = [
    "ANALYZE",
    "CURRENT_USER",
    "DATABASE_SET_UP",
    "DIALECTS",
    "HIDDEN",
    "NAMES",
    "SERVER_SETTINGS",
    "Dialect",
    "JsonList",
    "KeyText",
    "Rule",
    "Trouble",
    "UtcDateTime",
    "WholeId",
    "adding",
    "adds_many",
    "big_id",
    "committing_each",
    "compiler_for",
    "connecting",
    "created_default",
    "dialect_of",
    "dropping_check",
    "dropping_index",
    "engine_options",
    "fold_of",
    "folded",
    "identity",
    "index_is_unique",
    "index_names",
    "invalid_indexes",
    "is_there",
    "joining_widely",
    "key_text",
    "listen",
    "long_text",
    "masked",
    "network_mount",
    "no_connection_left",
    "now",
    "now_plus",
    "number_room",
    "open_engine",
    "parse_url",
    "plain_text",
    "plan_of",
    "reaching",
    "reason_of",
    "recollated",
    "refusal",
    "refused_by",
    "retyping",
    "rolled_back",
    "row_estimate",
    "rules_of",
    "same_database",
    "seconds_since",
    "secrets_of",
    "set_up_database",
    "setting_default",
    "sever",
    "table_options",
    "takes_default",
    "taking_null",
    "text_length",
    "text_room",
    "trouble",
    "unavailable",
    "wait_for_notice",
    "without",
    "writing",
    "zone_is_lost",
]
