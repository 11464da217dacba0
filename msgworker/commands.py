"""The commands of ours that texts propose, each as it runs where this process was started.

A text has a command in backticks and without an App, such as `msgworker doctor`. Where it leaves us
(an error, a log record, a finding, a page, the output of a command) `proposed` adds the App or the
database. How a program of a user was started is not known: APP_EXAMPLE then stands for its App.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

APP_EXAMPLE = "pkg.module:app"
NEED_APP = ("run", "drain")
WITH_LOCKS = (*NEED_APP, "web", "locks", "partitions", "deal", "config")
_PROPOSED = re.compile(r"`msgworker (?![^`]*--help)([a-z][a-z-]*(?: [^`]*)?)`")


def takes(name: str, option: str) -> bool:
    """Whether a command has an option that says what it acts on; none is imported for that."""
    if name == "demo" or name.startswith("-"):
        return False
    if option == "locks":
        return name in WITH_LOCKS
    anywhere = option in ("app_ref", "config_file")
    return anywhere or (name not in NEED_APP and (name, option) != ("ddl", "url"))


@dataclass(slots=True)
class Started:
    """How this process was started.

    program, brought: how the command line is called, and the App that this brings by itself
    (Django). given: the options that say which App and database, by their names, as a shell takes
    them and without passwords; a setting that has no option by the name of its variable. locks: ""
    if the file of the configuration says where they are.
    """

    program: str = "msgworker"
    brought: str | None = None
    given: dict[str, str] = field(default_factory=dict)

    def command(self, words: str) -> str:
        """A command to propose, such as "jobs show 5", as it acts on what this process acts on."""
        name, _, rest = words.partition(" ")
        app = self.given.get("app_ref", APP_EXAMPLE if name in NEED_APP else None)
        told = [app] if app is not None and app != self.brought and takes(name, "app_ref") else []
        variables = []
        for option, value in self.given.items():
            if option.isupper():
                variables += [f"{option}={value}"] if takes(name, "url") else []
            elif value and option != "app_ref" and takes(name, option):
                told += [f"--{option.removesuffix('_file').replace('_', '-')}", value]
        if rest.startswith((" ".join(told) or APP_EXAMPLE, APP_EXAMPLE)):
            told = []  # it has an App already, as a text that another process has stored
        if "locks" in self.given:
            rest = rest.removeprefix("--locks URL")
        return " ".join(part for part in (*variables, self.program, name, *told, rest) if part)


_started = [Started(given={"app_ref": APP_EXAMPLE})]


@contextmanager
def started(how: Started) -> Iterator[None]:
    """The commands of the block, of all threads, are those of a process that was started so."""
    _started.append(how)
    try:
        yield
    finally:
        _started.remove(how)


def brings(program: str, app: str) -> None:
    """From now on: the program of a framework has this App, whoever has started the process."""
    for one in _started:
        if one.given.get("app_ref") in (app, APP_EXAMPLE):
            one.program, one.brought, one.given["app_ref"] = program, app, app


def command(words: str) -> str:
    """A command to propose: "jobs show 5" is "msgworker jobs crm:app show 5"."""
    return _started[-1].command(words)


def proposed(text: str) -> str:
    """A text of ours, with each command that stands in it in backticks as `command` has it."""
    return _PROPOSED.sub(lambda found: f"`{command(found[1])}`", text)
