"""Settings: their limits, and the origin of each value.

values      checks of single values
settings    all settings
keywords    those of an App, for type checkers; made from it
layers      precedence of keyword, flag, environment and files
"""

from msgworker.config.keywords import Keywords
from msgworker.config.layers import Configuration, fill, load
from msgworker.config.settings import (
    BACKOFF_SECONDS,
    HISTORY_SECONDS,
    MAX_PROCESSES,
    MAX_THREADS,
    MAX_TRIES,
    SETTINGS,
    Settings,
    flag_of,
)
from msgworker.config.values import (
    YEAR_SECONDS,
    as_id,
    as_instant,
    id_of,
    nearest,
    number,
    seconds,
    setting_text,
    whole,
)
