"""Output in a terminal of 80 columns, and of others: whole words, nothing that wraps by
itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import sqlite3
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from msgworker.cli import output
from msgworker.cli.output import wrapped
from tests.support.programs import LOOKS, Cli, environment, sql

LONG = "the account of the customer has no ledger for the month, ask the finance department please"
NARROW = f"""
from tenacity import wait_none
from msgworker import App, Context, Message, Reject

app = App("sqlite:///crm.db")

@app.handler("customer.settle.monthly", wait=wait_none())
def settle(msg):
    raise ValueError("{LONG}, for " + msg.object_id)

def one(n):
    if n == 3:
        raise KeyError("{LONG}")
    return {{"note": "x" * 20 * n}}

@app.handler("batch", wait=wait_none())
def batch(msg, ctx):
    ctx.fan_out(one, range(30), key=lambda n: "account-%04d" % n).raise_for_failed()
"""


@pytest.fixture
def filled(cli: Cli, folder: Path, scratch: Path) -> Cli:
    """A database with a dead message, 1, a failed fan-out, 2, and waiting ones; it is made once."""
    (folder / "narrow.py").write_text(NARROW)
    kept = scratch / "narrow.db"
    if kept.exists():
        shutil.copyfile(kept, folder / "crm.db")
        return cli
    fill(cli)
    sql(folder, "UPDATE msgworker_try SET instance = 'vm-1-01234567'")
    with (
        contextlib.closing(sqlite3.connect(folder / "crm.db")) as made,
        contextlib.closing(sqlite3.connect(kept)) as copy,
    ):
        made.backup(copy)
    return cli


def fill(cli: Cli) -> None:
    assert cli("init-db", "--app", "narrow:app").exit_code == 0
    for topic, whose in (("customer.settle.monthly", "C-00000000000000001-of-the-north"),):
        payload = json.dumps({"text": LONG, "list": [1, 2]})
        cli("send", topic, "--object-id", whose, "--payload", payload, "--app", "narrow:app")
    cli("send", "batch", "--object-id", "B-1", "--app", "narrow:app")
    drained = cli("drain", "narrow:app", "--linger", "0", "--retry-linger", "30")
    assert drained.exit_code == 1, drained.stderr
    for n in range(3):
        cli("send", "nobody.handles.this.topic", "--object-id", f"W-{n}", "--app", "narrow:app")
    reason = "the ledger of the month was loaded by hand after the import had failed"
    discarded = cli("discard", "3", "--reason", reason, "--actor", "anna", "--app", "narrow:app")
    assert discarded.exit_code == 0, discarded.stderr


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make stdout look like a terminal of a width."""

    def look(width: int) -> None:
        monkeypatch.setattr(output, "to_terminal", lambda: True)
        monkeypatch.setattr(output, "terminal_width", lambda: width)

    return look


SINGLE = [
    ("show", "1"),
    ("show", "2", "--all"),
    ("explain", "1"),
    ("explain", "2"),
    ("audit", "3"),
    ("failures",),
    ("doctor", "--plan"),
]
REST = [tuple(look.split()) for look in LOOKS]


@pytest.mark.long
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(filled: Cli, terminal: Any, width: int) -> None:
    terminal(width)
    for command in SINGLE + REST:
        shown = filled(*command, "--app", "narrow:app")
        wide = [line for line in shown.stdout.split("\n") if wcswidth(line) > width]
        assert wide == [], command


@pytest.mark.quick("-80")
@pytest.mark.parametrize("width", [70, 80, 100, 200])
@pytest.mark.parametrize("name", ["app-7c9f-1-0123456789abcdef", "x" * 47 + "-0123456789abcdef"])
def test_the_id_of_an_instance_is_never_cut(
    cli: Cli, folder: Path, terminal: Any, width: int, name: str
) -> None:
    (folder / "narrow.py").write_text(NARROW)
    cli("init-db", "--app", "narrow:app")
    cli("send", "t", "--app", "narrow:app")
    told = json.dumps({"topics": ["customer.settle", "customer.notify", "invoice.print"]})
    lease = (
        "INSERT INTO msgworker_lease (name, started_at, renewed_at, expires_at, serves, label)"
        f" VALUES ('{name}', datetime('now', '-600 seconds'), datetime('now', '-200 seconds'),"
        f" datetime('now', '+100 seconds'), '{told}', 'crm-workers')"
    )
    sql(folder, lease)
    sql(
        folder,
        f"UPDATE msgworker_message SET status = 1, claimed_by = '{name}',"
        " claimed_at = datetime('now', '-300 seconds')",
    )
    terminal(width)
    text = click.unstyle(cli("instances", "--app", "narrow:app").stdout)
    assert text.split().count(name) == 1
    assert max(map(wcswidth, text.splitlines())) <= width
    assert "live, overdue" in text
    assert "3 minutes" in text


@pytest.mark.quick("60")
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_view_of_one_message_cuts_nothing_and_breaks_no_word(
    filled: Cli, terminal: Any, width: int
) -> None:
    terminal(width)
    for command in SINGLE:
        text = click.unstyle(filled(*command, "--app", "narrow:app").stdout)
        if command[0] not in ("doctor", "audit"):
            assert LONG in " ".join(text.split()), command
        if command[0] != "failures":  # whose TOPICS may be cut
            assert "…" not in text, command
    assert "loaded by hand after the import had failed" in " ".join(
        filled("audit", "3", "--app", "narrow:app").stdout.split()
    )


def test_in_a_pipe_every_text_is_one_line(filled: Cli) -> None:
    for command in (("show", "1"), ("explain", "1"), ("failures",), ("list",)):
        lines = filled(*command, "--app", "narrow:app").stdout.split("\n")
        assert any(LONG in line for line in lines), command


@pytest.mark.long
def test_a_real_terminal_of_80_columns_shows_whole_words(filled: Cli, folder: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "msgworker", "show", "1", "--app", "narrow:app"]
    env = environment(TERM="xterm")
    child = subprocess.Popen(command, cwd=folder, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    read = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # what Linux says at the end
            break
        if not part:
            break
        read += part
    os.close(ours)
    assert child.wait(60) == 0
    lines = click.unstyle(read.decode()).replace("\r\n", "\n").split("\n")
    assert all(wcswidth(line) <= 80 for line in lines)
    assert LONG in " ".join(" ".join(lines).split())


# ---------------------------------------------------------------- the tracebacks and the items


def test_what_has_just_ended_is_not_just_now_ago(filled: Cli) -> None:
    for command in (("show", "1"), ("show", "2"), ("list",)):
        assert "just now ago" not in filled(*command, "--app", "narrow:app").stdout


def test_show_has_the_newest_traceback_whole_and_the_same_one_once(filled: Cli) -> None:
    text = filled("show", "1", "--app", "narrow:app").stdout
    assert text.count("Traceback (most recent call last):") == 1
    assert "traceback of tries 1, 2 and 3\n" in text
    assert "  Traceback (most recent call last):\n" in text
    assert 'narrow.py", line 9, in settle\n' in text
    found = json.loads(filled("show", "1", "--json", "--app", "narrow:app").stdout)
    assert [one["traceback"][:9] for one in found["tries"]] == ["Traceback"] * 3


def test_show_has_the_end_of_older_tracebacks_unless_all_is_asked_for(
    filled: Cli, folder: Path
) -> None:
    moved = NARROW.replace(
        "def settle(msg):\n", "def settle(msg):\n    post(msg)\n\ndef post(msg):\n"
    )
    assert filled("rerun", "1", "--app", "narrow:app").exit_code == 0
    (folder / "moved.py").write_text(moved)
    filled("drain", "moved:app", "--linger", "1", "--retry-linger", "1")
    short = filled("show", "1", "--app", "narrow:app").stdout
    assert short.count("Traceback (most recent call last):") == 1
    assert "traceback of tries 4, 5 and 6\n" in short
    assert "traceback of tries 1, 2 and 3\n" not in short  # its end only
    assert "traceback of tries 1, 2 and 3 (its end; --all shows all of it)\n" in short
    whole = filled("show", "1", "--all", "--app", "narrow:app").stdout
    assert whole.count("Traceback (most recent call last):") == 2
    assert "(its end" not in whole
    groups = json.loads(filled("failures", "--json", "--app", "narrow:app").stdout)["failures"]
    assert {group["count"] for group in groups} == {1}


def test_nothing_raw_of_a_traceback_reaches_the_terminal(filled: Cli, folder: Path) -> None:
    import sqlite3

    with sqlite3.connect(folder / "crm.db") as conn:
        conn.execute("UPDATE msgworker_try SET traceback = 'a' || char(27) || '[31m' || char(10)")
        conn.execute("UPDATE msgworker_item SET item_value = char(27), last_error = char(155)")
    for msg_id in (1, 2):
        text = filled("show", msg_id, "--app", "narrow:app").stdout
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert r"a\x1b[31m" in text


def test_show_lists_items_failed_ones_first_with_counts(filled: Cli) -> None:
    text = filled("show", "2", "--items", "3", "--app", "narrow:app").stdout
    assert "items: 29 done, 1 failed\n" in text
    at = text.index("items: ")
    order = [text.index(key, at) for key in ("account-0003", "account-0000", "account-0001")]
    assert order == sorted(order)
    assert "and 27 more" in text
    assert "account-0002" not in text[at:]
    none = filled("show", "2", "--items", "0", "--app", "narrow:app").stdout
    assert "items: 29 done, 1 failed\n" in none
    assert "ITEM" not in none
    refused = filled("show", "2", "--items", "-1", "--app", "narrow:app")
    assert refused.exit_code == 2
    assert "its fan-out: 29 done, 1 failed" in filled("explain", "2", "--app", "narrow:app").stdout


def test_show_has_the_items_as_json(filled: Cli) -> None:
    found = json.loads(filled("show", "2", "--items", "2", "--json", "--app", "narrow:app").stdout)
    items = found["items"]
    assert (items["done"], items["failed"], items["total"], items["not_started"]) == (29, 1, 30, 0)
    assert [one["key"] for one in items["listed"]] == ["account-0003", "account-0000"]
    assert set(items["listed"][0]) == {"key", "state", "tries", "value", "error", "finished_at"}
    alone = json.loads(filled("show", "1", "--json", "--app", "narrow:app").stdout)
    assert alone["items"] is None


# ---------------------------------------------------------------- wrapping


@given(
    st.text(st.sampled_from("ab ,客é"), max_size=300),
    st.integers(10, 40),
    st.sampled_from(["", "  ", "> "]),
)
def test_a_wrapped_text_is_the_same_text_in_lines_that_fit(
    text: str, width: int, rest: str
) -> None:
    lines = wrapped(text, width, rest=rest)
    assert all(wcswidth(line) <= width for line in lines)
    body = lines[:1] + [line[len(rest) :] for line in lines[1:]]
    assert "".join("".join(body).split()) == "".join(text.split())


@given(st.lists(st.text("abc客", min_size=1, max_size=4), min_size=1), st.integers(12, 40))
def test_no_word_that_fits_a_line_is_broken(words: list[str], width: int) -> None:
    lines = wrapped(" ".join(words), width, rest="  ")
    assert " ".join(" ".join(line.strip() for line in lines).split()) == " ".join(words)


def test_a_word_longer_than_a_line_is_broken_into_full_lines() -> None:
    assert wrapped("see " + "x" * 20, 10) == ["see", "x" * 10, "x" * 10]
    assert wrapped("x" * 5, 4, first="> ", rest="  ") == ["> xx", "  xx", "  x"]


def test_colours_take_no_room() -> None:
    red = click.style("dead", fg="red")
    assert wrapped(f"{red} letter", 11) == [f"{red} letter"]


def test_what_a_line_is_indented_by_is_repeated() -> None:
    assert wrapped("    a bb ccc", 9, rest="  ") == ["    a bb", "      ccc"]


def test_an_indent_wider_than_the_terminal_does_no_harm() -> None:
    assert all(wcswidth(line) <= 10 for line in wrapped(" " * 50 + "words and words", 10))


@pytest.mark.parametrize("rest", ["", " ", "    ", " " * 17])
@pytest.mark.parametrize("width", range(1, 12))
def test_however_narrow_the_terminal_a_text_comes_to_its_end(width: int, rest: str) -> None:
    for text in ("ab cd", "客客客", " 客 客"):
        lines = wrapped(text, width, rest=rest)
        assert "".join("".join(lines).split()) == "".join(text.split())
