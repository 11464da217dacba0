"""What a stand-in cannot do, by the names of tests. A test that is listed and passes is an error.

`python -m tests.oracle.cannot` prints the table of docs/oracle.md.
"""

from __future__ import annotations

import re

import pytest

from tests.oracle.standins import NAMES

FILES = {
    "back_off",
    "cancel",
    "chains",
    "claim",
    "doctor",
    "drain",
    "fan_out",
    "fan_out_executors",
    "history",
    "hot_objects",
    "lease",
    "limits",
    "ops_discard",
    "ops_explain",
    "ops_items",
    "ops_limits",
    "ops_looks",
    "ops_operations",
    "ops_pages",
    "ops_pause",
    "ops_purge",
    "ops_races",
    "ops_release",
    "ops_rerun",
    "ops_schedules",
    "ops_started",
    "ops_tries",
    "order",
    "outcomes",
    "payloads",
    "priorities",
    "quarantine",
    "settle",
    "sharing",
    "start_stop",
    "timeouts",
    "timers",
    "transactional",
    "unique",
    "unowned",
}
"""The files of the contract suite that run on the stand-ins."""
CORE = {
    "test_a_failed_message_is_tried_again",
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
    lines = ["| test | with | why |", "|---|---|---|"]
    for test, (pattern, why) in sorted(CANNOT.items()):
        which = f"`{pattern}`" if pattern else "all"
        lines.append(f"| `{test}` | {which.replace('|', chr(92) + '|')} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(shown(), end="")
