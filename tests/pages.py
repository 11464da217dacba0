"""Run what the pages of the site show: `python -m tests.pages [--write] PAGE ...`.

A page is run in a folder of its own, from its top:

* a block whose first line is `# file: NAME` (`-- file: NAME` in SQL) is that file;
* a block of `console` is run, command by command, and the page shows what it prints. Times,
  durations, ids of instances and process ids may differ, and `...` stands for any text;
* other blocks of Python are compiled, and of `sh` (what changes the machine: pip, systemctl) only
  what follows `msgworker` is checked: the command and its options exist;
* of tabs, those of one database are run.

--write puts what is printed into the page.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from msgworker.cli import main as command_line
from msgworker.cli.group import COMMANDS

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
    (r"[\w.-]+-\d+-[0-9a-f]{16}", "INSTANCE"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\+00:00)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?", "TIME"),
    (r"\b\d+(?:\.\d+)? ?(?:ms|us|s|min|h|d)\b", "DURATION"),
    (r"\b\d+ (?:second|minute|hour)s?\b", "DURATION"),
    (r"\bpid \d+|\[\d+\] \d+", "PID"),
    (r"[ \t]+", " "),
]
OTHERS = re.compile(r"^\S+ warning table \S+: it is new here; .*\n", re.M)
"""Said of the databases that other tests have on the same server."""
END = "--- end of a command ---"


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


def named(block: Block) -> tuple[str, str] | None:
    """The file that a block is."""
    head = re.match(r"(?:#|--) file: (\S+)\n", block.text)
    return (head[1], block.text[head.end() :]) if head else None


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
    script = "set -m\n" + "".join(c + after for c, _ in given)
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


def unknown_options(line: str) -> list[str]:
    """Options in a command line that its command does not have."""
    words = shlex.split(line, comments=True)
    words = words[words.index("msgworker") + 1 :] if "msgworker" in words else []
    names = [word for word in words if word in COMMANDS]
    if not names:
        return []
    context = click.Context(command_line)
    command = command_line.get_command(context, names[0])
    assert command is not None
    known = {"--help", *(o for p in [*command_line.params, *command.params] for o in p.opts)}
    known |= {o for p in command.params for o in p.secondary_opts}
    for inner in getattr(command, "commands", {}).values():
        known |= {o for p in inner.params for o in p.opts}
    return [w for w in words if w.startswith("--") and w.partition("=")[0] not in known]


def check(path: Path, tab: str | None = None, url: str | None = None) -> list[str]:
    """Run a page; return what differs from what it says."""
    page, wrong = path.read_text(encoding="utf-8"), []
    shown = URLS[tab] if tab else None
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home).resolve()
        for block in blocks(page, tab):
            if file := named(block):
                target = folder / file[0]
                target.parent.mkdir(parents=True, exist_ok=True)
                text = file[1].replace(shown, url) if url and shown else file[1]
                target.write_text(text, encoding="utf-8")
            if block.kind == "python":
                ast.parse(block.text)
            elif block.kind == "sh":
                joined = block.text.replace("\\\n", " ")
                wrong += [
                    f"{line}: {o}"
                    for line in joined.splitlines()
                    for o in (unknown_options(line) if "msgworker" in line else [])
                ]
            elif block.kind == "console":
                given = commands(block.text)
                for (command, expected), printed in zip(
                    given, run(block, folder, url, shown), strict=False
                ):
                    if not same(expected, printed):
                        wrong.append(f"$ {command}\n{printed}--- the page says\n{expected}")
    return wrong


def write(path: Path, tab: str | None = None, url: str | None = None) -> None:
    """Put what is printed into the page, where it is not what stands there."""
    page = path.read_text(encoding="utf-8")
    shown = URLS[tab] if tab else None
    changes = []
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home).resolve()
        for block in blocks(page, tab):
            if file := named(block):
                target = folder / file[0]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(file[1].replace(shown, url) if url and shown else file[1])
            elif block.kind == "console":
                given, text = commands(block.text), ""
                for (command, expected), printed in zip(
                    given, run(block, folder, url, shown), strict=True
                ):
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
