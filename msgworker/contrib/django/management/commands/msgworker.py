"""`manage.py msgworker COMMAND ...`: the command line of msgworker, with the App of the project."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import click
from django.core.management.base import BaseCommand

from msgworker.cli import main
from msgworker.cli.group import takes_app
from msgworker.contrib.django.connection import APP, PROGRAM

_BRINGS_ITS_OWN = ("--app", "--url", "-h", "--help")


class Command(BaseCommand):
    """All arguments are those of msgworker; see `manage.py msgworker --help`."""

    help = "The command line of msgworker, with the App of this project: run, drain, status, ..."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        self._run(argv[2:], f"{os.path.basename(argv[0])} {argv[1]}")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *args: Any, **given: Any) -> None:
        """For `call_command("msgworker", "status", "--json")`; raises SystemExit with the exit
        code."""
        self._run([*map(str, args), *given.get("words", ())], PROGRAM)

    def _run(self, words: list[str], name: str) -> None:
        # Processes that `run --processes` starts find the project where this one does.
        paths = [path for path in sys.path if path and os.path.isdir(path)]
        before = os.environ.get("PYTHONPATH", "")
        if paths and paths[0] not in before.split(os.pathsep):
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [paths[0], before]))
        main.main(with_app(ours(words)), prog_name=name, brought=APP)


def ours(words: list[str]) -> list[str]:
    """The arguments without the options that every command of Django has."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name)
    parser.add_argument("-v", "--verbosity")
    for name in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(name, action="store_true")
    end = words.index("--") if "--" in words else len(words)
    asked, left = parser.parse_known_args(words[:end])
    if asked.no_color:
        os.environ["NO_COLOR"] = "1"
    return [*(["--debug"] if asked.traceback else []), *left, *words[end:]]


def with_app(words: list[str]) -> list[str]:
    """The arguments, with the App of the project if the command takes one and none is given."""
    at = next((place for place, word in enumerate(words) if not word.startswith("-")), None)
    if at is None:
        return words
    command = main.get_command(click.Context(main), words[at])
    named = any(word.partition("=")[0] in _BRINGS_ITS_OWN for word in words)
    if command is None or named or not takes_app(command):
        return words
    return [*words[: at + 1], f"--app={APP}", *words[at + 1 :]]
