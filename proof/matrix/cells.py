"""Which versions go together. A cell is one virtual environment and one run of the suite.

All pairs would be some twenty cells; these have each version of Python with the newest of the
rest, and each other choice with one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OLD = ("SQLAlchemy<2.1",)
PURE = ("psycopg>=3.2.1", "PyMySQL>=1.1,<1.3", "oracledb>=2.0")
"""The drivers without what is compiled of psycopg: it loads the system's libpq."""
BINARY = ("psycopg[binary]>=3.2.1", "PyMySQL>=1.1,<1.3", "oracledb>=2.0")
_CLICK = "click before 8.2 cannot give a test what was written to stderr"
_CLIENT = "the test client of Starlette 0.40 cannot say where a request comes from"
_RIGHTS = {
    "test_a_dashboard_needs_no_more_rights_than_a_looker_and_says_what_a_write_lacks": _CLIENT,
    "test_each_role_of_the_page_is_refused_the_next_larger_thing": _CLICK,
    "test_the_rights_of_the_page_are_enough_for_schedules": _CLICK,
}
_OLDEST_CANNOT = {
    "tests/contract/test_bad_names.py::test_odd_column_names_are_one_identifier[sqlite-per%(s)s]": (
        "a column named per%(s)s needs a SQLAlchemy between 2.0.54 and 2.0.56"
    ),
    **{
        f"tests/contract/test_rights.py::{test}[{database}]": why
        for test, why in _RIGHTS.items()
        for database in ("postgresql", "mariadb")
    },
}


@dataclass(frozen=True)
class Cell:
    """python: a version, "3.13t" = free-threaded. packages: requirements beside the package's own.
    oldest: all lower bounds of pyproject.toml. more: tests beside
    CORE. cannot: tests that fail there -> why; one that passes is an error.
    absent: modules that cannot be had there, of which the tests name parts at import."""

    name: str
    python: str
    packages: tuple[str, ...] = BINARY
    oldest: bool = False
    more: tuple[str, ...] = ()
    cannot: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


CELLS = (
    Cell(
        "oldest",
        "3.11",
        packages=(),
        oldest=True,
        more=(
            "tests/config",
            "tests/contract/test_bad_names.py",
            "tests/contrib/test_django.py",
            "tests/coordination",
            "tests/metrics",
        ),
        cannot=_OLDEST_CANNOT,
    ),
    Cell(
        "sqlalchemy-2.0",
        "3.11",
        packages=(*BINARY, *OLD),
        more=("tests/store", "tests/test_ddl.py"),
    ),
    Cell("python-3.11", "3.11"),
    Cell("python-3.12-pure-2.0", "3.12", packages=(*PURE, *OLD)),
    Cell("python-3.13", "3.13"),
    Cell("python-3.13-pure", "3.13", packages=PURE),
    Cell("python-3.14", "3.14"),
    Cell("python-3.14-2.0", "3.14", packages=(*BINARY, *OLD)),
    Cell(
        "free-threaded",
        "3.13t",
        packages=("psycopg>=3.2.1", "PyMySQL>=1.1,<1.3"),
        absent=("oracledb",),
    ),
)
CORE = (
    "test_app",
    "test_batches",
    "test_chains",
    "test_claim",
    "test_drain",
    "test_fan_out",
    "test_fan_out_transactional",
    "test_handlers",
    "test_hot_objects",
    "test_lease",
    "test_limits",
    "test_order",
    "test_outcomes",
    "test_overlapping_settles",
    "test_payloads",
    "test_pools",
    "test_priorities",
    "test_produce",
    "test_quarantine",
    "test_recovery",
    "test_rights",
    "test_rule",
    "test_schema",
    "test_settle",
    "test_sharing",
    "test_start_stop",
    "test_timeouts",
    "test_timers",
    "test_tracing",
    "test_transactional",
    "test_unique",
    "test_unknown_commit",
    "test_unowned",
)
"""The files of the contract suite of which a cell runs the quick tests."""
