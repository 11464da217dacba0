"""`msgworker demo --web`, on a part of the purchases."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from msgworker.cli import main

SHORT = """
import msgworker.demo.purchases as purchases
bought = purchases.read()[:100]
purchases.read = lambda: bought
import msgworker.demo.run as demo
demo._Demo.kill_one = demo._Demo.stop_one = lambda self: None
demo.STATEMENTS = 8
demo.PROCESSES = 1
from msgworker.cli import main
main()
"""
"""The program with less to do: the acts of the others are in the long test."""


@pytest.mark.long
def test_the_demo_keeps_the_dashboard_open_until_ctrl_c_and_removes_its_database(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", SHORT, "demo", "--web", "--port", "0"]
    program = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
    )
    try:
        assert program.stdout is not None
        said = []
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/", (said or [""])[-1])):
            line = program.stdout.readline()
            assert line, said
            said.append(line)
        assert any(line.startswith("proved ") for line in said)
        text = urllib.request.urlopen(found[0], timeout=20).read().decode()
        assert "<h1>Overview</h1>" in text
        assert "purchase.price" in text
        dead = urllib.request.urlopen(f"{found[0]}messages?status=dead", timeout=20).read().decode()
        assert "the customer has no address" in dead
        assert ">Rerun" in dead
        workers = urllib.request.urlopen(f"{found[0]}instances", timeout=20).read().decode()
        assert "Take over" in workers, "a live instance has to handle what is rerun"
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 0
        assert list(tmp_path.iterdir()) == []
    finally:
        program.kill()
        program.wait()


def test_the_demo_refuses_a_port_that_is_taken_before_it_begins() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(main, ["demo", "--web", "--port", port])
    assert done.exit_code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert done.stdout == ""


def test_the_demo_takes_a_port_for_its_dashboard_only() -> None:
    done = CliRunner().invoke(main, ["demo", "--port", "0"])
    assert done.exit_code == 2
    assert "give --web too" in done.stderr
