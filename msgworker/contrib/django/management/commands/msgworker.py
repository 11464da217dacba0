"""`manage.py msgworker COMMAND ...`: the command line of msgworker, with the App of the project."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from django.core.management.base import BaseCommand

from msgworker.cli import main
from msgworker.cli.group import takes_app

APP = "msgworker.contrib.django.project:app"
_BRINGS_ITS_OWN = ("--app", "--url", "-h", "--help")


class Command(BaseCommand):
    """All arguments are those of msgworker; see `manage.py msgworker --help`."""

    help = "The command line of msgworker, with the App of this project: run, drain, status, ..."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        self._run(argv[2:], f"{os.path.basename(argv[0])} {argv[1]}")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs="*")

    def handle(self, *args: Any, **given: Any) -> None:
        """For `call_command("msgworker", "status")`; raises SystemExit with the exit code."""
        self._run([*map(str, args), *given.get("words", ())], "msgworker")

    def _run(self, words: list[str], name: str) -> None:
        # Processes that `run --processes` starts find the project where this one does.
        paths = [path for path in sys.path if path and os.path.isdir(path)]
        before = os.environ.get("PYTHONPATH", "")
        if paths and paths[0] not in before.split(os.pathsep):
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [paths[0], before]))
        main.main(with_app(words), prog_name=name)


def with_app(words: list[str]) -> list[str]:
    """The arguments, with the App of the project if the command takes one and none is given."""
    if not words or words[0].startswith("-"):
        return words
    command = main.get_command(click.Context(main), words[0])
    named = any(word.partition("=")[0] in _BRINGS_ITS_OWN for word in words)
    if command is None or named or not takes_app(command):
        return words
    return [words[0], f"--app={APP}", *words[1:]]
