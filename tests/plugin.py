"""Databases for the tests: real ones, fresh for each test. conftest.py at the root loads this, for
both trees: tests/ and proof/."""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from sqlalchemy.engine import make_url

from proof.oracle import standins
from proof.oracle.ready import ReadyOverMariaDB, collated
from proof.oracle.schema import NotOurs, emptied
from tests import requirements, tools, variants
from tests.compiled import share_compiled
from tests.engines import dispose_all, keep_those_beside, left_in_use, outlive, plain_engine
from tests.quick import compile_share, has_time, long_ones, spread, todays
from tests.ready import Ready, ReadyFile
from tests.scratch import keep_in_memory
from tests.servers import VARIABLES, CannotHave, Fleet, session
from tests.support.apps import (  # noqa: F401 - fixtures
    app,
    app_with,
    blocking_app,
    make_app,
    sqlite_app,
    table,
)
from tests.tools import NEEDS, is_needed

NAMES = ["sqlite", "postgresql", "mariadb"]
_number = itertools.count(1)
_not_tested: dict[str, str] = {"mysql": "MariaDB stands in; `make test-matrix` starts a MySQL 9.7"}
if os.environ.get(VARIABLES["oracle"]):
    NAMES.append("oracle")
else:
    _not_tested["oracle"] = "no server; stand-ins run its SQL (docs/project/oracle.md)"


# Where Python is told to write no bytecode, each process would compile the tests anew, and what
# pytest rewrites of its plugins (hypothesis: a second): for longer than it imports all of it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
keep_in_memory()
share_compiled()
keep_those_beside()
standins.install()
variants.install()

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("msgworker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("msgworker")

_shared: list[Fleet] = []  # of a run on several processes, in the one that starts the others


def pytest_configure(config: pytest.Config) -> None:
    """Where the tests run on several processes (xdist), start the servers once, for all of them;
    what they need is installed by one process, too. Files of one folder are named one behind the
    other: pytest 9.1 loses fixtures of the folder else (pytest-dev/pytest#14971)."""
    if any(".py" in one for one in config.args):
        config.args.sort()
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamesFailures(config))
        _shared.append(Fleet(durable=False))
        variants.offer(_shared[0])
        _shared[0].offer()
        _not_tested.update(_shared[0].missing)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    made = yield
    if fixturedef.scope != "function":
        outlive()
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """The engines of a test end with it. A connection that it leaves in use is a fault: whoever
    comes later would find what becomes of it in its log."""
    done = yield
    dispose_all()
    left = left_in_use()
    assert not left, f"connections are left in use: {left}"
    if next(_ended) % TESTS_KEPT == 0:
        gc.collect()
        gc.freeze()
    return done


class NamesFailures:
    """Names a test that fails at once: a run that is cut off has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.partition("\n")[0] if crash else report.longreprtext[-200:]
            terminal.write_line(f"\n{report.nodeid} failed ({report.when}): {why}")


def pytest_unconfigure() -> None:
    for fleet in _shared:
        fleet.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is made meanwhile is there for good: the garbage collector need not look at these
    million objects, now or later."""
    gc.disable()
    try:
        compile_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000, 10, 1_000)
        gc.enable()


_ended = itertools.count(1)
COLLECTED = pytest.StashKey[set[str]]()
"""The names of all tests that were found, with their parameters, those left out too."""
TESTS_KEPT = 25
"""What so many tests leave is looked at once: of what has outlived them, such as statements and
tables that Apps share, most is there for good, and to look at it again and again took 15 % of the
time of all tests."""


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what a database lacks; mark as long what tests/quick.py leaves to the laboratory; leave
    what runs on this variant."""
    for item in items[:1]:
        item.config.stash[COLLECTED] = {one.name for one in items}
    requirements.mark(items)
    for item in long_ones(items):
        item.add_marker(pytest.mark.long)
    variants.only(items)
    spread(items)
    todays(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Today's slice of the long tests ends with its time."""
    if not has_time(item):
        pytest.skip("the time of today's slice is over")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A MySQL in MariaDB's place has its own name."""
    return "mysql" if val == "mariadb" and variants.is_mysql() else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip for want of what MSGWORKER_TEST_NEEDS names is a failure. And write out what is no
    Unicode in what a test has logged: xdist ends where it meets it."""
    report = yield
    lacks = _lacks(report)
    if lacks is not None and is_needed(lacks[0]):
        report.outcome = "failed"
        report.longrepr = f"{lacks[0]} is not there, but {NEEDS} asks for it: {lacks[1]}"
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


@dataclass
class Database:
    """One database. `name` is sqlite, postgresql, mariadb, mysql or oracle. ready: whether the
    tables of a default App are there; else it is empty. stand_in: what it is instead of an
    Oracle."""

    name: str
    url: str
    ready: bool = False
    stand_in: str | None = None

    def engine(self) -> sa.Engine:
        """A plain engine of its own."""
        options = {"connect_args": {"program": standins.TESTS}} if self.stand_in else {}
        return plain_engine(self.url, **options)


@pytest.fixture(scope="session")
def servers() -> Iterator[Fleet]:
    """The database servers of this session; `servers.url("postgresql")` starts one."""
    with session(durable=False) as fleet:
        variants.offer(fleet)
        yield fleet


def make_database(name: str, fleet: Fleet, folder: Path) -> tuple[Database, str | None]:
    """A fresh database and its name, for `_remove`; skips the test if there is no server."""
    if name == "sqlite":
        return Database(name, f"sqlite:///{folder / f'test{next(_number)}.db'}"), None
    try:
        base = make_url(fleet.url(standins.server_of(name)))
    except CannotHave as reason:
        lacks = standins.server_of(name)
        _not_tested[lacks] = str(reason)
        pytest.skip(f"{lacks} is not there: {reason}")
    if name in standins.NAMES:
        label = _created(base, collated)
        url = standins.over(base, label)
        return Database("oracle", standins.text(url), stand_in=name), label
    if name == "oracle":
        try:
            emptied(base)
        except NotOurs as reason:
            _not_tested[name] = str(reason)
            pytest.skip(f"{name} is not there: {reason}")
        return Database(name, base.render_as_string(hide_password=False)), None
    label = _emptied.pop() if name == "postgresql" and _emptied else _created(base)
    url = _of_the_server(name, fleet, label)
    return Database(name, standins.text(variants.way_to(url, fleet))), label


def _of_the_server(name: str, fleet: Fleet, label: str | None) -> sa.URL:
    """How the server itself has a database, whatever way the tests take to it."""
    url = make_url(fleet.url(standins.server_of(name))).set(database=label)
    return url.update_query_dict({"charset": "utf8mb4"}) if name == "mariadb" else url


def _created(base: sa.URL, options: str = "") -> str:
    label = f"mw_{os.getpid()}_{next(_number)}"
    _administer(base, f"CREATE DATABASE {label} {options}")
    return label


def _remove(base: sa.URL, label: str) -> None:
    """Drop a database; on PostgreSQL, where making one takes long, empty it for the next test."""
    if base.get_backend_name() != "postgresql":
        _administer(base, f"DROP DATABASE {label}")
    elif _emptied_it(base, label):
        _emptied.append(label)
    else:
        _administer(base, f"DROP DATABASE {label} WITH (FORCE)")


_emptied: list[str] = []


def _emptied_it(base: sa.URL, label: str) -> bool:
    """Whether the database is as new; one whose settings a test has changed is not."""
    for_all = f"d.datname = '{label}'"
    _administer(base, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity d WHERE {for_all}")
    settings = "pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase"
    if _administer(base, f"SELECT 1 FROM {settings} WHERE {for_all}"):
        return False
    inside = base.set(database=label)
    engine = plain_engine(inside, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        with engine.connect() as conn:
            found = conn.exec_driver_sql(
                "SELECT quote_ident(nspname) FROM pg_namespace "
                "WHERE nspname NOT LIKE 'pg\\_%%' AND nspname <> 'information_schema'"
            )
            for schema in found.scalars().all():
                conn.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
            conn.exec_driver_sql("CREATE SCHEMA public")
            conn.exec_driver_sql("GRANT USAGE ON SCHEMA public TO PUBLIC")
    except sa.exc.DBAPIError:  # a session of the test's is still at it
        return False
    return True


def _administer(base: sa.URL, statement: str) -> list[tuple[Any, ...]]:
    with _administrator(base).connect() as conn:
        done = conn.exec_driver_sql(statement)
        return [tuple(row) for row in done] if done.returns_rows else []


@cache
def _administrator(base: sa.URL) -> sa.Engine:
    """Its connection is kept: making one costs more than most of what is done on it."""
    if base.get_backend_name() == "postgresql" and not base.database:
        base = base.set(database="postgres")
    engine = plain_engine(base, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    outlive(engine)
    return engine


@pytest.fixture
def ready() -> None:
    """Asked for by a fixture that wants the tables of a default App in its `database`."""


@pytest.fixture
def effects_table() -> None:
    """Asked for by one that wants the table of effects there, too."""


@pytest.fixture(params=[*NAMES, *standins.NAMES])
def database(
    request: pytest.FixtureRequest,
    servers: Fleet,
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Database]:
    """A fresh, empty database; the test runs once on each kind."""
    name = str(request.param)
    if name in standins.NAMES:
        monkeypatch.setenv("PYTHONPATH", standins.SITE, prepend=os.pathsep)
    if "ready" in request.fixturenames and name != "oracle":
        effects = "effects_table" in request.fixturenames
        yield from _ready(name, servers, tmp_path, scratch, effects=effects)
    else:
        yield from _fresh(name, servers, tmp_path)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this process."""
    return tmp_path_factory.mktemp("scratch")


_kept: dict[tuple[str, bool], Ready] = {}


def _ready(
    name: str, fleet: Fleet, folder: Path, scratch: Path, *, effects: bool
) -> Iterator[Database]:
    """A database with the tables of a default App."""
    if name == "sqlite":
        path = folder / f"test{next(_number)}.db"
        ReadyFile(scratch, effects=effects).copy_to(path)
        yield Database(name, f"sqlite:///{path}", ready=True)
        return
    server = standins.server_of(name)
    stand_in = name if name in standins.NAMES else None
    kind = ReadyOverMariaDB if stand_in else Ready
    kept = _kept.setdefault((name, effects), kind(server, effects=effects))
    url = kept.take()
    if url is None:
        _, label = make_database(name, fleet, folder)
        url = _of_the_server(name, fleet, label)
        kept.make(url)
    known = "oracle" if stand_in else name
    reached = variants.way_to(kept.app_url(url), fleet)
    try:
        yield Database(known, standins.text(reached), ready=True, stand_in=stand_in)
    finally:
        dispose_all()
        if not kept.give_back(url):
            _remove(make_url(fleet.url(server)), str(url.database))


@pytest.fixture
def sqlite(servers: Fleet, tmp_path: Path) -> Iterator[Database]:
    """A fresh SQLite database, for what is the same everywhere."""
    yield from _fresh("sqlite", servers, tmp_path)


@pytest.fixture
def postgresql(servers: Fleet, tmp_path: Path) -> Iterator[Database]:
    """A fresh PostgreSQL database, for what only it has."""
    yield from _fresh("postgresql", servers, tmp_path)


@pytest.fixture
def mariadb(servers: Fleet, tmp_path: Path) -> Iterator[Database]:
    """A fresh MariaDB database, for what only it has."""
    yield from _fresh("mariadb", servers, tmp_path)


def _fresh(
    name: str, fleet: Fleet, folder: Path, end: Callable[[], None] = dispose_all
) -> Iterator[Database]:
    """end: what ends the connections to it."""
    made, label = make_database(name, fleet, folder)
    try:
        yield made
    finally:
        end()
        if label is not None:
            _remove(make_url(fleet.url(standins.server_of(name))), label)


_NOT_THERE = re.compile(r"([\w-]+) is not there: (.+)", re.S)


def _lacks(report: pytest.TestReport) -> tuple[str, str] | None:
    """What a test was skipped for want of, and why it is not there; None if it was not."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return None
    found = _NOT_THERE.search(str(report.longrepr[2]))
    if found is None or found[1] not in VARIABLES | tools.VARIABLES:
        return None
    return found[1], found[2]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what a test was skipped for want of; with xdist another process has found out."""
    lacks = _lacks(report)
    if lacks is not None:
        _not_tested[lacks[0]] = lacks[1]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly which databases, and which programs, nothing was tested with, and why."""
    for name, reason in _not_tested.items():
        variable = (VARIABLES | tools.VARIABLES).get(name, VARIABLES["mariadb"])
        what = "one" if name in tools.VARIABLES else "a server"
        terminalreporter.write_line(
            f"NOT TESTED: {name}: {reason} (set {variable} to use {what} of your own)",
            yellow=True,
            bold=True,
        )
