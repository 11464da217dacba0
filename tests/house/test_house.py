"""The habits of the house, as tests."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import msgworker
from tests.names import TREES, homes, nodes_of, tree_of
from tests.quick import ON_ALL
from tests.support.programs import python

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "msgworker"
FILES = sorted(PACKAGE.rglob("*.py"))
pytestmark = pytest.mark.xdist_group("sources")
SQL = {"store", "schema", "queries", "doctor", "table", "db", "demo", "testing"}


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def test_imports_go_one_way() -> None:
    """The layers are in pyproject.toml; `make lint` checks them, too."""
    pytest.importorskip("importlinter", reason="import-linter is of the group dev")
    # In a process of its own: it turns off the loggers that there are.
    code = "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))"
    done = python("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stdout


INSIDES = {
    "SQLAlchemy": {
        *("_bindparams", "_exec_once_mutex", "_handle_dbapi_exception", "_max_overflow"),
        "_proxied",
    },
    "PyMySQL": {"_read_timeout", "_sock"},
    "kazoo": {"_session_timeout"},
    "mariadb": {"_get_socket"},
    "uvicorn": {"capture_signals", "uvicorn.protocols.http.h11_impl"},
}
"""What we use of the insides of a library: it may change with each version of it, so pyproject.toml
has an upper bound. `_get_socket` is used where it is there: that library is no extra of ours."""
PYTHONS = {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"}
PYTHONS |= {"_value_"}
"""Of os, of sys, of enums and of named tuples: documented."""


def test_the_insides_of_a_library_are_named_and_bounded() -> None:
    nodes = [node for path in FILES for node in nodes_of(path)]
    ours = {node.attr for node in nodes if isinstance(node, ast.Attribute) and stored(node)}
    ours |= {node.id for node in nodes if isinstance(node, ast.Name) and stored(node)}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ours |= {node.name for node in nodes if isinstance(node, kinds)}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {
        alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    used |= {part for name in modules for part in name.split(".") if name != "__future__"}
    inside = {name for name in used if re.match(r"_[a-z]", name)} - ours - PYTHONS
    named = {name for names in INSIDES.values() for name in names}
    assert inside <= named
    assert named <= used | modules | ours
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for one in [*project["dependencies"], *(one for some in extras for one in some)]:
        if re.split(r"[\[<>=]", one)[0] in INSIDES:
            assert ",<" in one, one


def stored(node: ast.Attribute | ast.Name) -> bool:
    """Whether a name is one of ours: an attribute of our own objects, or a variable."""
    if not isinstance(node.ctx, ast.Store):
        return False
    return isinstance(node, ast.Name) or ast.unparse(node.value) in ("self", "cls", "made")


LATER = {
    "coordination",
    "databases",
    "doctor",
    "events",
    "metrics",
    "ops",
    "queries",
    "schema",
    "web",
}
"""What an App reaches when it is used, and no import of it does; of instance/, all but handlers."""


def test_an_app_is_quick_to_import() -> None:
    """It takes at most 1.3 times what `import sqlalchemy` takes, which depends on how many modules
    it reads: so those are counted, and not the time."""
    code = (
        "import json, sys, sqlalchemy; before = set(sys.modules); from msgworker import App; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = python("-c", code)
    found = json.loads(done.stdout)
    own = [name.split(".") for name in found if name.partition(".")[0] == "msgworker"]
    assert len(own) <= 51
    assert LATER.isdisjoint(name[1] for name in own if len(name) > 1)
    inside = {".".join(name[2:4]) for name in own if name[1:2] == ["instance"]} - {""}
    handlers = {"running", "running.context", "running.handler", "running.traceback"}
    assert inside <= handlers
    others = {name for name in found if name.partition(".")[0] != "msgworker"}
    assert {name.partition(".")[0] for name in others} <= {"_zoneinfo", "sqlalchemy", "zoneinfo"}
    assert len(others) <= 6


A_DATABASE = re.compile(
    r"postgres|mysql|mariadb|oracle|sqlite|psycopg|pymysql|innodb|galera|wsrep|myisam|\bpg_\w|"
    r"group_replication",
    re.I,
)
NAMED_TO_USERS = {
    "cli/group.py": 1,  # --help: what `demo` runs on
    "cli/schema.py": 2,  # --help and the error of --partitions
    "config/layers.py": 1,  # the example of a URL
    "config/settings.py": 2,  # --help: notify, and the unit of max_payload
    "doctor/server.py": 1,  # what a server is called in a finding
    "producing.py": 1,  # and in the errors of a value or a name that it does not take
    "schema/describe.py": 1,
    "store/purge.py": 1,
}
"""Places outside of db/, by file: in each of them a user reads the name."""


def places_of_names(path: Path) -> Iterator[str]:
    """Names and texts that name a database, or ask an engine for the name of its; without what is
    only said of the code, in comments and docstrings."""
    nodes = nodes_of(path)
    said = {
        id(body[0].value)
        for node in nodes
        if isinstance(body := getattr(node, "body", None), list)
        and body
        and isinstance(body[0], ast.Expr)
    } | {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield from [node.value] if A_DATABASE.search(node.value) else []
        elif isinstance(node, ast.Attribute):
            if A_DATABASE.search(node.attr):
                yield ast.unparse(node)
            if node.attr == "name" and ast.unparse(node.value).endswith(("dialect", "database")):
                yield ast.unparse(node)
        elif isinstance(node, ast.Name) and A_DATABASE.search(node.id):
            yield node.id


def test_only_db_names_a_database() -> None:
    found = {}
    for path in FILES:
        if part_of(path) not in ("db", "demo", "testing", "contrib"):
            named = list(places_of_names(path))
            found |= {path.relative_to(PACKAGE).as_posix(): len(named)} if named else {}
    assert found == NAMED_TO_USERS


def test_only_store_runs_sql() -> None:
    """No select, insert, update or delete is built outside store/ (table/ builds predicates and
    DDL; testing.py makes what a test has recorded older)."""
    building = re.compile(r"\b(sa|sqlalchemy)\.(select|insert|update|delete|text)\(")
    found = [
        f"{path.relative_to(ROOT)}"
        for path in FILES
        if part_of(path) not in SQL and building.search(path.read_text())
    ]
    assert found == []


def test_every_logger_of_ours_escapes_what_others_wrote() -> None:
    """By `logs.logger`: no call that logs a text of a row, an error or a URL can forget it."""
    found = []
    for path in FILES:
        if part_of(path) in ("logs", "demo"):
            continue
        for node in nodes_of(path):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called.endswith("getLogger") and (path.stem, path.parent.name) != ("logs", "cli"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {called}")
            if re.fullmatch(r"logging\.(debug|info|warning|error|exception|critical|log)", called):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {called}")
    assert found == []


@pytest.mark.parametrize("folder", ["instance", "store", "schema", "queries"])
def test_a_folder_lists_what_is_in_it_in_the_order_of_a_message_s_life(folder: str) -> None:
    home = PACKAGE / folder
    groups = [path for path in home.iterdir() if (path / "__init__.py").exists()]
    for package in [home, *groups]:
        text = ast.get_docstring(tree_of(package / "__init__.py")) or ""
        if package is home:
            listed = re.findall(r"^(\w+) {2,}", text, re.M)
        else:
            listed = re.findall(r"\w+", text[text.index("In order:") + 9 :])
        files = {path.stem for path in package.glob("[!_]*.py")}
        there = files | {path.parent.name for path in package.glob("*/__init__.py")}
        assert sorted(listed) == sorted(there), package


def test_no_module_is_named_after_nothing() -> None:
    bad = {"utils", "util", "helpers", "base", "manager", "common", "misc"}
    assert [p for p in FILES if p.stem in bad or p.parent.name in bad] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [p for p in FILES if p.read_text() and not ast.get_docstring(tree_of(p))]
    assert silent == []


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == msgworker.__version__
    cut = "Unreleased" if ".dev" in msgworker.__version__ else msgworker.__version__
    assert f"## [{cut}]" in (ROOT / "CHANGELOG.md").read_text()


def test_top_level_is_what_was_promised() -> None:
    wanted = "pyproject.toml msgworker tests proof ddl samples bench docs README.md ARCHITECTURE.md"
    wanted += " CHANGELOG.md LICENSE Makefile .ci/run"
    assert [name for name in wanted.split() if not (ROOT / name).exists()] == []


def test_readme_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_what_contributors_are_told_to_touch_and_to_run_is_there() -> None:
    text, makefile = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "Makefile").read_text()
    paths = set(re.findall(r"(?<![\w/.-])((?:msgworker|tests|proof|docs|samples)/[\w/.]*\w)", text))
    assert [path for path in sorted(paths) if not (ROOT / path.replace("NN", "12")).exists()] == []
    for target in set(re.findall(r"`?make ([a-z-]+)", text)):
        assert re.search(rf"^{target}:", makefile, re.M), target
    assert "- run: .ci/run\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_every_file_that_the_architecture_names_is_there() -> None:
    """By the end of its path; `manage.py` is Django's."""
    ends = {f"/{path.relative_to(ROOT).as_posix()}" for path in (*FILES, *OF_TESTS)}
    named = set(re.findall(r"[\w/]+\.py\b", (ROOT / "ARCHITECTURE.md").read_text()))
    named -= {"manage.py", "bench/pages.py"}
    assert [one for one in sorted(named) if not any(end.endswith(f"/{one}") for end in ends)] == []


@pytest.mark.parametrize(
    "page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/project/internals.md"]
)
def test_every_name_of_the_code_that_a_contributor_is_told_is_there(page: str) -> None:
    words = set(re.findall(r"\w+", "\n".join([*map(Path.read_text, FILES), *TESTS.values()])))
    words |= {path.stem for path in OF_TESTS}
    named = re.findall(r"`(?:\w+\.)*(\w+)(?:\(\.*\))?`", (ROOT / page).read_text())
    assert sorted(set(named) - words) == []


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "samples").glob("*.md"),
    ]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


OF_TESTS = sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
TESTS = {path: path.read_text() for path in OF_TESTS}
PLANTING = (
    *("tests/coordination/", "tests/scopes/"),
    *("proof/crash/", "proof/machines/", "proof/simulation/"),
)
"""Where tests put a fault in the place of a method, or look at what a lock centre keeps."""


def test_no_test_sleeps_for_more_than_a_second() -> None:
    """It waits for what it wants to see (`until`); how long a handler takes is its own affair."""
    found = []
    for path, text in TESTS.items():
        tree = tree_of(path) if "time.sleep(" in text else ast.Module([], [])
        constants = {
            ast.unparse(node.targets[0]): node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            if path.name.startswith("test_")
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "time.sleep":
                continue
            (given,) = node.args
            seconds = given.value if isinstance(given, ast.Constant) else None
            if constants.get(ast.unparse(given), seconds or 0) > 1:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def private_parts(path: Path) -> Iterator[tuple[str, str, int]]:
    """What but itself is asked for a private attribute, also by setattr; the attribute; the
    line."""
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr.startswith("_") and not own:
                yield ast.unparse(node.value), node.attr, node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            whom, what, *_ = [*node.args, None, None]
            if isinstance(what, ast.Constant) and isinstance(what.value, str):
                yield ast.unparse(whom), what.value, node.lineno


def test_no_test_reaches_into_what_is_private() -> None:
    """The package has seams for its tests: `app.setup_of`, `Worker.instance`, roles by name."""
    # Of named tuples, of os and of sys.
    own = {"_replace", "_make", "_asdict", "_fields", "_exit", "_current_frames"}
    found = []
    asking = re.compile(r"(?<!\bself)(?<!\bcls)(?<!super\(\))\._[a-z]|attr\(")
    for path in [one for one, text in TESTS.items() if asking.search(text)]:
        name = path.relative_to(ROOT).as_posix()
        for whom, what, line in private_parts(path):
            if not re.match(r"_[a-z]", what) or what in own or whom == "super()":
                continue
            ours = whom.split(".")[-1] in ("app", "worker", "instance")
            if ours or not name.startswith(PLANTING):
                found.append(f"{name}:{line}: {whom}.{what}")
    assert found == []


def test_no_test_takes_anything_from_another_test() -> None:
    """What several need is in tests/support, or in the conftest.py of their folder."""
    found = []
    for path, text in TESTS.items():
        asked = re.findall(r"^from (?:tests|proof)\.(?:\w+\.)*test_\w+ import", text, re.M)
        found += [f"{path.relative_to(ROOT)}: {line}" for line in asked]
    assert found == []


def test_tests_take_only_a_database_from_the_laboratory() -> None:
    """The stand-in of Oracle; proof/ takes from tests/ what it likes."""
    found = []
    for path, text in TESTS.items():
        if path.is_relative_to(ROOT / "tests"):
            asked = re.findall(r"^ *(?:from|import) proof\b(?!\.oracle\b).*", text, re.M)
            found += [f"{path.relative_to(ROOT)}: {line}" for line in asked]
    assert found == []


def test_what_is_quick_on_all_databases_is_there() -> None:
    assert [part for part in ON_ALL if not list(ROOT.glob(f"{part}*"))] == []


def test_no_two_tests_share_a_name() -> None:
    """So the lists of tests need not say in which file each is."""
    assert [(name, files) for name, files in homes().items() if len(files) > 1] == []


def test_no_path_of_a_machine_in_a_file() -> None:
    done = subprocess.run(
        ["git", "grep", "-n", "-I", "-E", r"/(work|root)/[a-z]", "--", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "tests/house/test_house.py" not in line]
    assert lines == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """In the whole package, with imports for types and those inside functions."""
    named = {}
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        named[".".join(parts).removesuffix(".__init__")] = path
    asked: dict[str, set[str]] = {}
    for name, path in named.items():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msgworker"):
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    asked.setdefault(name, set()).add(whole if whole in named else node.module)
    for name in asked:
        asked[name] -= {"msgworker"}  # the public names, which are found when asked for
    list(TopologicalSorter(asked).static_order())  # raises CycleError


def test_a_long_file_says_why_at_its_top() -> None:
    found = []
    for path in FILES:
        text = path.read_text()
        told = "One file, because" in (ast.get_docstring(tree_of(path)) or "")
        if len(text.splitlines()) > 600 and not told:
            found.append(f"{path.relative_to(ROOT)}: {len(text.splitlines())}")
    assert found == []


TURNS = re.compile(
    r"\b(in hand(?!\.\w)|for ever|done without|goes on as|said aloud|by its own doing|met again|"
    r"wishes|somebody|everybody|anybody|asks the database|tells? people|is at it|hears? of|"
    r"to mend|with their mends|stood still|"
    r"(?<!--)[Nn]obody (else|can|could|may|would|had|did|\w+s))\b"
)
"""Turns of an idiom of our own; docs/reference/glossary.md has a term of the field for each."""


def test_prose_uses_the_terms_of_the_glossary() -> None:
    """Comments, docstrings, texts and pages; not the names of tests in them."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "samples").rglob("*.*")]
    found = []
    tests = {*TESTS} - {Path(__file__)}
    for path in [*FILES, *pages, *tests, *(ROOT / "bench").glob("*.py")]:
        if path.suffix in (".md", ".py"):
            words = " ".join(path.read_text(encoding="utf-8").replace("#", " ").split())
            found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in TURNS.finditer(words)]
    assert found == [], "say it with a term of docs/reference/glossary.md, or in plain words"
