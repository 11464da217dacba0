"""The contract suite with other versions, each in an environment of its own: `nox --list`.

    nox -s oldest                                         one of them
    nox -s python-3.13 -- tests/contract/test_order.py    other tests in it
    python -m tests.debian 3.14 3.13t                     Pythons that this Debian does not have

All pairs of versions would be some twenty sessions; these have each Python with the newest of the
rest, and each other choice with one of them. An interpreter that is not found is told and skipped.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
KEPT = ROOT / ".matrix"
PATHS = (KEPT / "python3.14" / "root" / "usr/bin", KEPT / "python3.13t" / "root" / "bin")
os.environ["PATH"] = os.pathsep.join([*map(str, PATHS), os.environ["PATH"]])
nox.options.default_venv_backend = "venv"

OLD = "SQLAlchemy<2.1"
PURE = ("psycopg>=3.2.1", "PyMySQL>=1.1,<1.3", "oracledb>=2.0")
"""The drivers without what is compiled of psycopg: it loads the system's libpq."""
BINARY = ("psycopg[binary]>=3.2.1", *PURE[1:])
WITH_STORE = ("tests/store", "tests/test_ddl.py")
WITH_ALL = ("tests/config", "tests/contrib/test_django.py", "tests/coordination", "tests/metrics")
ODD_NAMES, RIGHTS = "tests/contract/test_bad_names.py", "tests/contract/test_rights.py"
SESSIONS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "oldest": ("3.11", (), (*WITH_ALL, ODD_NAMES)),
    "sqlalchemy-2.0": ("3.11", (*BINARY, OLD), WITH_STORE),
    "python-3.11": ("3.11", BINARY, ()),
    "python-3.12-pure-2.0": ("3.12", (*PURE, OLD), ()),
    "python-3.13": ("3.13", BINARY, ()),
    "python-3.13-pure": ("3.13", PURE, ()),
    "python-3.14": ("3.14", BINARY, ()),
    "python-3.14-2.0": ("3.14", (*BINARY, OLD), ()),
    "free-threaded": ("3.13t", PURE[:2], ()),
}
"""Python, requirements beside the package's own, tests beside CORE."""
TOOLS = (
    "hypothesis httpx httpx2 itsdangerous jinja2 opentelemetry-sdk pytest pytest-timeout "
    "pytest-xdist starlette"
)
"""Of the group test: what the contract suite itself imports."""
CORE = """
    app batches chains claim drain fan_out fan_out_transactional handlers hot_objects lease
    limits order outcomes overlapping_settles payloads pools priorities produce quarantine
    recovery rights rule schema settle sharing start_stop timeouts timers tracing transactional
    unique unknown_commit unowned"""
"""Files of the contract suite of which a session runs the quick tests."""
OLDEST_CANNOT = f"""
    {ODD_NAMES}::test_odd_column_names_are_one_identifier[sqlite-per%(s)s]
    {RIGHTS}::test_a_dashboard_needs_no_more_rights_than_a_looker_and_says_what_a_write_lacks
    {RIGHTS}::test_each_role_of_the_page_does_its_work
    {RIGHTS}::test_each_role_of_the_page_is_refused_the_next_larger_thing
    {RIGHTS}::test_the_rights_of_the_page_are_enough_for_schedules
""".split()
"""What fails with them: docs/project/versions.md says why."""


def oldest() -> list[str]:
    """All lower bounds of the package and of its extras at once; cx-oracle has one version only."""
    told = PROJECT["project"]
    extras = [v for name, v in told["optional-dependencies"].items() if name != "cx-oracle"]
    found = []
    for one in sorted({*told["dependencies"], *(one for some in extras for one in some)}):
        bound = re.match(r"([\w.-]+(?:\[[\w,-]+\])?)>=([\w.]+)", one)
        if bound is None:
            raise ValueError(f"{one} has no lower bound")
        found.append(f"{bound[1]}=={bound[2]}")
    return found


def tools() -> list[str]:
    wanted = nox.project.dependency_groups(PROJECT, "test")
    return [one for one in wanted if re.split(r"[<>=]", one)[0] in TOOLS.split()]


def tests_of(name: str) -> list[str]:
    """What pytest is given in a session."""
    given = [*(f"tests/contract/test_{one}.py" for one in CORE.split()), *SESSIONS[name][2]]
    if name == "oldest":
        given += [f"--deselect={test}" for test in OLDEST_CANNOT]
    return given


def contract(session: nox.Session) -> None:
    name = session.name
    packages = oldest() if name == "oldest" else SESSIONS[name][1]
    session.install("--only-binary", ":all:", "--upgrade", "pip")
    session.install("--only-binary", ":all:", "--editable", ".", *tools(), *packages)
    environment = {}
    if name == "free-threaded":  # which has no oracledb
        environment = {"PYTHON_GIL": "0", "PYTHONPATH": str(ROOT / "proof/matrix/absent")}
    given = session.posargs
    if not [one for one in given if not one.startswith("-")]:
        given = [*given, *tests_of(name)]
    words = ["-q", "-n", "4", "--dist", "loadgroup", "--max-worker-restart", "0", "-m", "not long"]
    words += ["-k", "not oracle-mariadb"] if name == "free-threaded" else []
    session.run("python", "-m", "pytest", *words, *given, env=environment)


for _name, (_python, *_) in SESSIONS.items():
    nox.session(contract, name=_name, python=_python)
