"""Rules of SECURITY.md that hold for the whole source."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.coordination import RedisLocks, redis
from msgworker.db.engine import beside
from tests.names import nodes_of, tree_of
from tests.support.apps import created
from tests.support.rows import send

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.xdist_group("sources")
"""Of several test processes one alone reads the source."""


@cache
def sources() -> dict[str, ast.Module]:
    """Each file of the package, and what stands in it."""
    return {
        path.relative_to(ROOT).as_posix(): tree_of(path)
        for path in sorted((ROOT / "msgworker").rglob("*.py"))
    }


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Each call of the package: its file, what is called, the call."""
    return list(_calls())


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    for name in sources():
        for node in nodes_of(ROOT / name):
            if isinstance(node, ast.Call):
                yield name, ast.unparse(node.func), node


# ---------------------------------------------------------------- what a row cannot make us do

UNSAFE = re.compile(
    r"eval|exec|compile|__import__|os\.(system|popen|spawn\w+)|(c?[pP]ickle|dill|marshal|shelve)\."
    r"(loads?|open|Unpickler)|yaml\.(load|unsafe_load|full_load)|tempfile\.mktemp"
)
IMPORTS = {
    "msgworker/__init__.py": "public names",
    "msgworker/cli/group.py": "commands",
    "msgworker/cli/options.py": "the App that the command line names",
    "msgworker/db/database.py": "the databases that are supported",
    "msgworker/ops/__init__.py": "public names",
}
"""Who imports by a name that is not written there, and what it is the name of."""


def test_nothing_is_unpickled_evaluated_or_run_by_a_shell() -> None:
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node):.80}"
        for name, called, node in calls()
        if UNSAFE.fullmatch(called)
        or any(one.arg == "shell" for one in node.keywords)
        or (called == "os.chmod" or (called.endswith(".chmod") and "0o6" not in ast.unparse(node)))
    ]
    assert found == []


def test_code_is_imported_by_names_of_the_configuration_only() -> None:
    found = {
        name
        for name, called, node in calls()
        if called.split(".")[-1] == "import_module" and not isinstance(node.args[0], ast.Constant)
    }
    assert found <= set(IMPORTS)


# ---------------------------------------------------------------- SQL

RUNS = ("text", "exec_driver_sql", "literal_column", "DDL")
QUOTED = re.compile(r"quote|quoted|escaped|compiled|\bstr\(|int\(|type_compiler")
"""How a name, a number or a statement of SQLAlchemy gets into a text that is run."""


def built(node: ast.expr) -> list[str]:
    """The parts of a text that are not written there."""
    if isinstance(node, ast.JoinedStr):
        parts = [one for one in node.values if isinstance(one, ast.FormattedValue)]
        return [ast.unparse(one.value) for one in parts]
    if isinstance(node, ast.BinOp):
        return built(node.left) + built(node.right) if isinstance(node.op, ast.Add) else ["%"]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format"):
        return [ast.unparse(one) for one in node.args]
    return []


SQL = re.compile(
    r"\b(select\b.+\bfrom|insert\s+into|update\b.+\bset|delete\s+from|alter\s+(table|system)|"
    r"create\s+\w+|drop\s+\w+|grant\b.+\bon|lock\s+tables?|set\s+(session|local))\b",
    re.I | re.S,
)


DDL = ("msgworker/db/", "msgworker/schema/", "msgworker/doctor/", "msgworker/testing.py")
"""Where statements about tables are written, from names that were quoted; most only to be shown."""


def test_only_statements_about_tables_are_texts_that_are_put_together() -> None:
    """What B608 of bandit looks for; all other SQL is of Table and Column objects."""
    found = []
    for name in sources():
        for node in nodes_of(ROOT / name):
            if isinstance(node, ast.JoinedStr) and not name.startswith(DDL):
                text = "".join(
                    str(one.value) if isinstance(one, ast.Constant) else "x" for one in node.values
                )
                found += [f"{name}:{node.lineno}: {text:.60}"] if SQL.search(text) else []
    assert found == []


def test_no_value_stands_in_a_text_of_sql() -> None:
    """Values are parameters; names are quoted where a text needs one."""
    found = [
        f"{name}:{node.lineno}: {part}"
        for name, called, node in calls()
        if called.split(".")[-1] in RUNS and node.args
        for part in built(node.args[0])
        if not QUOTED.search(part)
    ]
    assert found == []


@pytest.mark.parametrize("own", [False, True])
def test_an_error_of_the_database_shows_no_parameters(
    sqlite: Any, own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also on an Engine of the user that shows them elsewhere."""
    theirs = sa.create_engine(sqlite.url, poolclass=sa.QueuePool)
    app = created(App(theirs if own else sqlite.url))
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TRIGGER no BEFORE INSERT ON msgworker_message BEGIN "
            "SELECT RAISE(ABORT, 'no'); END"
        )
    for engine in (app.engine, beside(app.engine)):
        with pytest.raises(sa.exc.DBAPIError) as error, engine.begin() as conn:
            conn.execute(sa.text("INSERT INTO msgworker_message (topic) VALUES (:x)"), {"x": "K7"})
        assert "K7" not in str(error.value)
    assert not theirs.hide_parameters
    with pytest.raises(Exception, match="no") as error:
        send(app, "K7", topic="K7")
    assert "K7" not in str(error.value)


# ---------------------------------------------------------------- locks


def test_redis_is_asked_by_fixed_scripts_and_never_for_all_its_keys() -> None:
    tree = sources()["msgworker/coordination/redis.py"]
    asked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.client"
    }
    assert asked.isdisjoint({"keys", "scan", "scan_iter", "flushdb", "flushall", "eval"})
    for script in (redis.ACQUIRE, redis.RENEW, redis.RELEASE, redis.HELD, redis.LOOK):
        assert not re.search(r"call\('(KEYS|SCAN|FLUSH\w+|EVAL)'", script)
    for node in ast.walk(tree):  # a script is made when the module is, of other such texts
        if isinstance(node, ast.JoinedStr) and "redis.call" in ast.unparse(node):
            parts = [ast.unparse(p.value) for p in node.values if isinstance(p, ast.FormattedValue)]
            assert all(part.isupper() for part in parts)


def test_redis_is_reached_with_tls_and_a_login_if_its_url_says_so() -> None:
    found = RedisLocks.from_url("rediss://crm:hunter2@cache:6380/0?ssl_cert_reqs=required")
    given = found.client.connection_pool.connection_kwargs
    assert (given["username"], given["password"]) == ("crm", "hunter2")
    assert "SSL" in found.client.connection_pool.connection_class.__name__
    assert "hunter2" not in repr(found)


# ---------------------------------------------------------------- what is installed


def test_few_packages_are_needed_and_nothing_runs_when_they_are_installed() -> None:
    """One more is a decision: it is code that runs beside the messages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    given = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["web"],
    ]
    assert {re.split(r"[\[<>=]", one)[0] for one in given} == {
        "SQLAlchemy",
        "click",
        "cronsim",
        "h11",
        "itsdangerous",
        "jinja2",
        "pydantic",
        "starlette",
        "tenacity",
        "typing-extensions",
        "uvicorn",
        "wcwidth",
    }
    assert project["build-system"] == {
        "requires": ["hatchling>=1.27"],
        "build-backend": "hatchling.build",
    }
    assert "hooks" not in str(project["tool"]["hatch"])
    assert not (ROOT / "setup.py").exists()
    every = [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
    assert [one for one in [*given, *every] if "@" in one or "://" in one] == []
