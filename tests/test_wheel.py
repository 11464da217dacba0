"""What is published: the wheel, the source distribution, and what the index page shows."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import msgworker

ROOT = Path(__file__).parent.parent
WEB = ROOT / "msgworker" / "web"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_BYTES = 1_000_000
USE = """
from msgworker import App

app = App("sqlite:///a.db")
app.create_schema()
app.add_handler("t", lambda msg: None)
with app.engine.begin() as conn:
    app.send(conn, "t", {"a": 1})
print(app.drain(linger=0))
"""


def test_the_wheel_has_every_template_and_static_file() -> None:
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in ("templates", "static")
        for path in (WEB / folder).rglob("*")
        if path.is_file()
    }
    assert {
        "msgworker/web/templates/base.html",
        "msgworker/web/static/htmx.min.js",
        "msgworker/web/static/VENDORED.md",
        "msgworker/web/static/licences/htmx.txt",
    } <= wanted
    found = {one.distribution_path for one in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert wanted - found == set()


def test_the_source_distribution_has_what_the_wheel_is_built_from_and_no_tests() -> None:
    found = {one.distribution_path for one in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert found >= {"msgworker/app.py", "msgworker/py.typed", "samples/data/cdnow_sample.txt"}
    assert {path.split("/")[0] for path in found} <= {
        *("msgworker", "samples", "ddl", "pyproject.toml", ".gitignore"),
        *("README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"),
    }


def test_the_links_of_the_index_page_lead_to_the_repository() -> None:
    """A relative one is dead there."""
    source = PROJECT["urls"]["Source"]
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / PROJECT["readme"]).read_text())
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    ours = [link.removeprefix(source) for link in links if link.startswith(source)]
    for link in ours:
        path = re.fullmatch(r"/(?:blob|tree|raw)/main/([^#]+)(?:#.*)?", link)
        assert path, link
        assert (ROOT / path[1]).exists(), link


def test_the_licence_is_said_as_an_expression_with_its_files() -> None:
    assert PROJECT["license"] == "MIT"
    assert [one for one in PROJECT["classifiers"] if "License" in one] == []
    for pattern in PROJECT["license-files"]:
        assert list(ROOT.glob(pattern)), pattern


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": source}


@pytest.mark.long
def test_what_is_published_is_in_order_and_small(built: dict[str, Path]) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built.values(), cwd=ROOT)
    assert built["sdist"].stat().st_size < MOST_BYTES
    with tarfile.open(built["sdist"]) as archive:
        names = archive.getnames()
    assert [name for name in names if "/tests/" in name or "/docs/" in name] == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_published_works_in_an_empty_environment(
    built: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", built[kind], cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    assert run(python, "-c", USE, cwd=tmp_path).startswith("done=1 failed=0")
    assert msgworker.__version__ in run(python, "-m", "msgworker", "--version", cwd=tmp_path)
    assert run(python, "-m", "msgworker", "list", "--json", "--url", "sqlite:///a.db", cwd=tmp_path)
