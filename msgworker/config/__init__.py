"""Settings: what there is to set, the limits of each, and where a value came from.

values      single values and their limits
settings    what there is to set
layers      keyword, flag, environment, files: which one wins
"""

from msgworker.config.layers import Configuration, fill, load
from msgworker.config.settings import (
    BACKOFF_SECONDS,
    MAX_PROCESSES,
    MAX_THREADS,
    MAX_TRIES,
    SETTINGS,
    Settings,
    flag_of,
)
from msgworker.config.values import YEAR_SECONDS, nearest, number, seconds, whole

__all__ = [
    "BACKOFF_SECONDS",
    "MAX_PROCESSES",
    "MAX_THREADS",
    "MAX_TRIES",
    "SETTINGS",
    "YEAR_SECONDS",
    "Configuration",
    "Settings",
    "fill",
    "flag_of",
    "load",
    "nearest",
    "number",
    "seconds",
    "whole",
]
