"""What a stand-in cannot do, by the names of tests. A test that is listed and passes is an error.

`python -m tests.oracle.cannot` prints the table of docs/oracle.md.
"""

from __future__ import annotations

import re

import pytest

from tests.oracle.standins import NAMES

FILES = {"claim", "order", "outcomes", "settle"}
"""The files of the contract suite that run on the stand-ins."""
CORE = {
    "test_the_database_refuses_a_second_running_row",
    "test_order_and_exclusion_over_threads",
    "test_order_and_exclusion_over_two_workers_and_apps",
    "test_three_tries_then_dead",
    "test_failed_head_holds_back_its_successors",
    "test_reject_is_dead_at_once",
    "test_messages_without_an_object_are_claimed_together",
    "test_rerun_starts_again_from_zero",
}
"""The tests that `make test` runs on them; the others are long."""
CANNOT: dict[str, tuple[str, str]] = {}
"""Test -> which of its parameters, as a pattern of its id, and why."""


def excused(items: list[pytest.Item]) -> None:
    """Take out the tests of other files; expect a failure of those that are listed."""
    left = []
    for item in items:
        given = getattr(item, "callspec", None)
        name = str(given.params.get("database", "")) if given else ""
        file = item.nodeid.split("::")[0].rpartition("/test_")[2].removesuffix(".py")
        if given and name in NAMES:
            if not item.nodeid.startswith("tests/contract/") or file not in FILES:
                continue
            test = getattr(item, "originalname", None) or item.name
            pattern, why = CANNOT.get(test, ("(?!)", ""))
            if re.search(pattern, given.id):
                item.add_marker(pytest.mark.xfail(reason=why, strict=True))
        left.append(item)
    items[:] = left


def shown() -> str:
    """The table of docs/oracle.md."""
    if not CANNOT:
        return "Nothing of these files.\n"
    lines = ["| test | with | why |", "|---|---|---|"]
    for test, (pattern, why) in sorted(CANNOT.items()):
        which = f"`{pattern}`" if pattern else "all"
        lines.append(f"| `{test}` | {which.replace('|', chr(92) + '|')} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(shown(), end="")
