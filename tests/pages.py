"""Run what the pages of the site show: `python -m tests.pages [--write] PAGE ...`.

A page is run in a folder of its own, from its top:

* a block whose first line is `# file: NAME` (`-- file: NAME` in SQL) is that file;
  `# file: NAME (continued)` goes on with it;
* a block of `console` is run, command by command, and the page shows what it prints. Times,
  durations, ids of instances and process ids may differ, and `...` stands for any text;
* what is not run (SHOWN says why) is read: Python is compiled, YAML, JSON, TOML and INI are parsed,
  and each command of ours, in blocks of any kind and in the text, is given to the real command
  line, which must take its arguments;
* of tabs, those of one database are run.

--write puts what is printed into the page.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import yaml

from msgworker.cli import main as command_line
from msgworker.cli.group import Invocation

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("start", "guides", "operate")
URLS = {
    "SQLite": "sqlite:///crm.db",
    "PostgreSQL": "postgresql+psycopg://crm:secret@localhost/crm",
    "MariaDB, MySQL": "mysql+pymysql://crm:secret@localhost/crm",
    "Oracle": "oracle+oracledb://crm:secret@localhost/?service_name=FREEPDB1",
}
"""The tabs, and the URL that each shows."""

FENCE = re.compile(r"^( *)(`{3,})(\w+)?([^\n]*)\n(.*?)^\1\2 *$", re.M | re.S)
TAB = re.compile(r"^:::\{tab-item\} ([^\n]+)\n(.*?)^:::$", re.M | re.S)
VARIES = [
    (r"[\w.-]+([-:])\d+\1[0-9a-f]{16}", "INSTANCE"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\+00:00)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?", "TIME"),
    (r"\b\d+(?:\.\d+)? ?(?:ms|us|s|min|h|d)\b", "DURATION"),
    (r"\b\d+ (?:second|minute|hour)s?\b", "DURATION"),
    (r"\b(?:DURATION ago|in DURATION|just now)\b", "DURATION"),
    (r"\bpid \d+|\[\d+\] \d+", "PID"),
    (r"[ \t]+", " "),
]
OTHERS = re.compile(r"^\S+ \S+ warning table \S+: it is new here; .*\n", re.M)
"""Said of the databases that other tests have on the same server."""
END = "--- end of a command ---"
SHOWN = {
    (
        "start/quickstart.md",
        "sql",
    ): "of the client of each database; INSERTs are run by the contract",
    ("start/quickstart.md", "sh"): "stays until it is stopped",
    ("guides/alembic.md", "python"): "run by tests/test_alembic.py on each database",
    ("guides/asyncio.md", "python"): "parts of an application; run by tests/contract/test_async.py",
    ("guides/batches.md", "python"): "a part of the handler above it",
    ("guides/chains.md", "json"): "a payload",
    ("guides/coordination.md", "sql"): "run by samples/contract_lease.py",
    ("guides/deploy.md", "ini"): "systemd",
    ("guides/deploy.md", "sh"): "a crontab",
    ("guides/deploy.md", "dockerfile"): "Docker",
    ("guides/deploy.md", "yaml"): "Kubernetes",
    ("guides/jobs.md", "sql"): "run by the contract on each database",
    ("guides/testing.md", "sh"): "a server of the reader; tests/test_testing.py runs it",
    ("guides/frameworks.md", "python"): "run as samples/django_crm, samples/fastapi_crm and by "
    "tests/contrib",
    ("guides/frameworks.md", "sh"): "run by tests/contrib/test_django.py",
    ("guides/from-cron.md", "sh"): "a crontab",
    ("guides/payloads.md", "python"): "run by tests/test_payload.py",
    ("guides/priorities.md", "python"): "columns of a table of the reader's",
    ("guides/retries.md", ""): "a drawing",
    ("guides/uninstall.md", "sql"): "one of many statements",
    ("guides/unique.md", "python"): "columns of a table of the reader's",
    ("operate/failover.md", "sql"): "of PostgreSQL, for a promotion",
    ("operate/failover.md", "text"): "a URL of two hosts; settings of servers",
    ("operate/galera.md", "text"): "a URL of three hosts; HAProxy, run as proof/galera/haproxy.py",
    ("operate/logs.md", ""): "a line of a log",
    ("operate/metrics.md", "sh"): "stays until it is stopped",
    ("operate/metrics.md", "yaml"): "Prometheus",
    ("operate/operations.md", "sql"): "run by tests/contract/test_partitioned_archive.py",
    ("operate/operations.md", "python"): "run by tests/cli/test_docs.py",
    ("operate/rerun.md", "sh"): "about a dead message of the reader's",
    ("operate/rights.md", "sql"): "run by tests/contract/test_rights.py",
    ("operate/tracing.md", "sh"): "installs packages",
    ("operate/tracing.md", "sql"): "headers of INSERTs are read by tests/contract/test_tracing.py",
    ("operate/web.md", "sh"): "installs packages; stays until it is stopped",
    ("operate/web.md", "nginx"): "nginx",
    ("operate/web.md", "apache"): "Apache",
    ("operate/web.md", ""): "Caddy",
    ("operate/web.md", "yaml"): "Traefik",
    ("operate/web.md", "python"): "mounted by tests/web/test_site.py",
}
"""Blocks that are not run: page and kind, and why."""


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    start: int
    """Where its text begins in the page."""
    indent: str


def blocks(page: str, tab: str | None) -> Iterator[Block]:
    """The fenced blocks, without those in tabs of other databases."""
    skipped = [m.span() for m in TAB.finditer(page) if m[1] in URLS and m[1] != tab]
    for match in FENCE.finditer(page):
        if not any(start <= match.start() < end for start, end in skipped):
            yield Block(match[3] or "", textwrap.dedent(match[5]), match.start(5), match[1])


def tabs(page: str) -> list[str]:
    return [
        name
        for name in dict.fromkeys(TAB.findall(page) and [m[0] for m in TAB.findall(page)])
        if name in URLS
    ]


def is_file(block: Block) -> re.Match[str] | None:
    return re.match(r"(?:#|--) file: (\S+)( \(continued\))?\n", block.text)


def only_shown(page: str) -> set[str]:
    """The kinds of its blocks that are not run."""
    return {
        block.kind
        for block in blocks(page, None)
        if block.kind != "console" and not block.text.startswith(":") and not is_file(block)
    }


def put(block: Block, folder: Path, url: str | None, shown: str | None) -> bool:
    """Write the file that a block is, if it is one."""
    head = is_file(block)
    if not head:
        return False
    text = block.text[head.end() :]
    target = folder / head[1]
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a" if head[2] else "w", encoding="utf-8") as file:
        file.write("\n\n" * bool(head[2]))
        file.write(text.replace(shown, url) if url and shown else text)
    return True


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a block of console with what each prints."""
    found = []
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = part.splitlines(keepends=True)
        last = next(n for n, line in enumerate(lines) if not line.rstrip("\n").endswith("\\"))
        command = "".join(line.removeprefix("> ") for line in lines[: last + 1])
        found.append((command.rstrip("\n"), "".join(lines[last + 1 :])))
    return found


def run(block: Block, folder: Path, url: str | None, shown: str | None) -> list[str]:
    """What each command prints, in one shell."""
    given = commands(block.text)
    after = f"\nkept=$?; echo '{END}'; (exit $kept)\n"
    script = "".join(c + after for c, _ in given)
    if url and shown:
        script = script.replace(shown, url)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("MSGWORKER", "PYTEST"))}
    environ |= {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    printed = done.stdout.split(f"{END}\n")[: len(given)]
    if url and shown:
        printed = [text.replace(url, shown) for text in printed]
    printed = [OTHERS.sub("", text) for text in printed]
    return [text.replace(str(folder), ".") for text in printed]


def _ini(text: str) -> None:
    configparser.ConfigParser(interpolation=None, strict=False).read_string(text)


PARSERS: dict[str, Callable[[str], object]] = {
    "python": ast.parse,
    "yaml": yaml.safe_load,
    "json": json.loads,
    "toml": tomllib.loads,
    "ini": _ini,
}


def same(expected: str, printed: str) -> bool:
    """Whether this was printed, but for what differs from run to run."""

    def plain(text: str) -> str:
        text = "\n".join(line.rstrip() for line in text.strip().splitlines())
        for pattern, word in VARIES:
            text = re.sub(pattern, word, text)
        return text

    wanted, found = plain(expected), plain(printed)
    if sorted(wanted.splitlines()) == sorted(found.splitlines()):
        return True  # what different objects and the log print comes in any order
    pattern = re.escape(wanted).replace(re.escape("..."), r"[\s\S]*?")
    return re.fullmatch(pattern, found) is not None


def calls(line: str) -> Iterator[list[str]]:
    """The words behind each `msgworker` in a line of a shell."""
    line = re.sub(r" \d>(&\d|\S+)", " ", line)  # 2>&1
    found = shlex.shlex(line, posix=True, punctuation_chars=True)
    found.whitespace_split = True
    words: list[str] | None = None
    for word in [*found, ";"]:
        if set(word) <= set("();<>|&"):
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(word)
        elif word.rsplit("/")[-1] == "msgworker":
            words = []


def refused(line: str, whole: bool = True) -> list[str]:
    """What the real command line refuses of the commands in a line.

    Words in capitals stand for what the reader puts there. whole: what is missing counts too.
    """
    line = re.sub(r'\[("msgworker"[^]]*)\]', lambda m: m[1].replace(",", " "), line)
    wrong = []
    for words in calls(line):
        if not words or not words[0].islower() or words[0].startswith("-"):
            continue
        given = ["8" if re.fullmatch(r"[A-Z]+|\.\.\.", word) else word for word in words]
        context = click.Context(command_line, obj=Invocation())
        try:
            name, command, rest = command_line.resolve_command(context, given)
            assert command is not None
            command.make_context(name, rest, parent=context)
        except click.exceptions.Exit:  # --help
            continue
        except (click.MissingParameter, click.BadOptionUsage) as error:
            wrong += [f"msgworker {' '.join(words)}: {error.format_message()}"] if whole else []
        except click.ClickException as error:
            wrong.append(f"msgworker {' '.join(words)}: {error.format_message()}")
    return wrong


def unknown(page: str) -> list[str]:
    """What the real command line refuses of all commands of a page."""
    wrong = []
    for block in blocks(page, None):
        if block.kind == "console":
            lines = [command for command, _ in commands(block.text)]
        elif block.kind in ("python", "sql", "json", "toml"):
            continue
        else:
            lines = block.text.replace("\\\n", " ").splitlines()
        for line in lines:
            if "msgworker" in line and not line.startswith("python -m bench"):
                wrong += refused(line)
    for inline in re.findall(r"`(msgworker [^`]+)`", FENCE.sub("", page)):
        wrong += refused(" ".join(inline.split()), whole=False)
    return wrong


def ran(
    page: str, tab: str | None, url: str | None
) -> Iterator[tuple[Block, list[tuple[str, str, str]]]]:
    """Run a page: each block of console with its commands, what the page says that they print, and
    what they have printed."""
    shown = URLS[tab] if tab else None
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home).resolve()
        for block in blocks(page, tab):
            put(block, folder, url, shown)
            if parse := PARSERS.get(block.kind):
                parse(block.text)
            elif block.kind == "console":
                both = zip(commands(block.text), run(block, folder, url, shown), strict=False)
                yield block, [(*given, printed) for given, printed in both]


def check(path: Path, tab: str | None = None, url: str | None = None) -> list[str]:
    """Run a page; return what differs from what it says."""
    return [
        f"$ {command}\n{printed}--- the page says\n{expected}"
        for _, told in ran(path.read_text(encoding="utf-8"), tab, url)
        for command, expected, printed in told
        if not same(expected, printed)
    ]


def write(path: Path, tab: str | None = None, url: str | None = None) -> None:
    """Put what is printed into the page, where it is not what stands there."""
    page, changes = path.read_text(encoding="utf-8"), []
    for block, told in ran(page, tab, url):
        assert len(told) == len(commands(block.text))
        text = ""
        for command, expected, printed in told:
            kept = expected if same(expected, printed) else printed.rstrip() + "\n"
            gap = "\n" if expected.endswith("\n\n") and not kept.endswith("\n\n") else ""
            text += f"$ {command}\n{kept if kept.strip() else ''}{gap}"
        whole = textwrap.indent(text.rstrip("\n") + "\n", block.indent)
        old = FENCE.match(page, page.rindex("\n", 0, block.start - 1) + 1)
        assert old
        changes.append((old.start(5), old.end(5), whole))
    for start, end, text in reversed(changes):
        page = page[:start] + text + page[end:]
    path.write_text(page, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    wrong = []
    for page in asked.pages:
        tab = "SQLite" if tabs(page.read_text()) else None
        if asked.write:
            write(page, tab)
        else:
            wrong += check(page, tab)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
