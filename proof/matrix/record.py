"""What `make test-matrix RECORD=1` writes down of each server, and the tables made of it.

`python -m proof.matrix.record NAME REPORT [REPORT ...]`: pytest's reports (JUnit's XML) of a whole
run on this server, and of tests that failed in it and ran again alone. Without arguments it writes
the tables anew.
"""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests import servers, variants

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("servers.json")
VERSIONS, README = ROOT / "docs" / "project" / "versions.md", ROOT / "README.md"
KINDS = {"postgresql": "PostgreSQL", "mariadb": "MariaDB", "mysql": "MySQL"}


def counted(reports: Sequence[str]) -> dict[str, Any]:
    """passed, listed (failed as tests/requirements.py says), skipped, failed (names), again (how
    many failed at first and passed alone), seconds of the first report."""
    found: dict[str, Any] = {"passed": 0, "listed": 0, "skipped": 0, "again": 0}
    failed: set[str] = set()
    for place, report in enumerate(reports):
        for case in ET.fromstring(report).iter("testcase"):
            name = re.sub(r"@\w+$", "", f"{case.get('classname')}::{case.get('name')}")  # of xdist
            skipped = case.find("skipped")
            wrong = case.find("failure") is not None or case.find("error") is not None
            if place and name not in failed:
                continue
            failed = failed | {name} if wrong else failed - {name}
            if wrong:
                continue
            listed = skipped is not None and skipped.get("type") == "pytest.xfail"
            found["listed" if listed else "skipped" if skipped is not None else "passed"] += 1
            found["again"] += 1 if place else 0
    suite = next(ET.fromstring(reports[0]).iter("testsuite"))
    return found | {"failed": sorted(failed), "seconds": round(float(suite.get("time", 0)))}


def version_of(name: str) -> str:
    """What the server itself says: 18.1. Raises CannotHave."""
    import sqlalchemy as sa

    kind = name.partition("-")[0]
    os.environ[servers.CHOSEN] = name if "-" in name else ""
    server = servers.start("mariadb" if kind == "mysql" else kind, durable=False)
    try:
        database = "postgres" if kind == "postgresql" else "mysql"
        engine = sa.create_engine(server.url + database, poolclass=sa.NullPool)
        with engine.connect() as conn:
            query = "SHOW server_version" if kind == "postgresql" else "SELECT version()"
            told = re.match(r"[\d.]+", str(conn.exec_driver_sql(query).scalar_one()))
    finally:
        server.remove()
    assert told is not None
    return told[0]


def table(record: Mapping[str, Any]) -> str:
    """of docs/project/versions.md."""
    rows = ["| server | tests | time | recorded |", "|---|---|--:|---|"]
    for name in variants.VERSIONS:
        if (one := record.get(name)) is None:
            continue
        count = f"{one['passed']:,} passed"
        count += f" ({one['again']} of them alone, after the run)" if one["again"] else ""
        for number, what in (
            (len(one["failed"]), "**failed**"),
            (one["listed"], "fail as listed"),
            (one["skipped"], "skipped"),
        ):
            count += f", {number} {what}" if number else ""
        rows.append(
            f"| {_words(name, one)} | {count} | {one['seconds'] / 60:.0f} min | {one['day']} |"
        )
    return "\n".join(rows)


def _words(name: str, one: Mapping[str, Any]) -> str:
    return f"{KINDS[name.partition('-')[0]]} {one['version']}"


def tested(record: Mapping[str, Any], kind: str) -> str:
    """The cell of README's table of databases."""
    found = {name: one["version"] for name, one in record.items() if name.startswith(kind)}
    own = found.pop(kind, "")
    others = " and ".join(found[name] for name in sorted(found))
    every = f"every test ({own})" if own else "every test" if kind in variants.VERSIONS else ""
    some = f"contract, statements, upgrades, crashes ({others})" if others else ""
    return "; ".join(part for part in (every, some) if part)


def made(record: Mapping[str, Any], versions: str, readme: str) -> tuple[str, str]:
    """Both pages, with the tables of this record."""
    versions = re.sub(
        r"(<!-- servers -->\n).*?(<!-- /servers -->)",
        lambda found: f"{found[1]}{table(record)}\n{found[2]}",
        versions,
        flags=re.S,
    )
    for kind, words in KINDS.items():
        readme = re.sub(
            rf"^(\| {words} [^|]*\|[^|]*\| )[^|]*( \|)",
            lambda found: found[1] + tested(record, kind) + found[2],  # noqa: B023
            readme,
            flags=re.M,
        )
    return versions, readme


def main() -> int:
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if len(sys.argv) > 2:
        name = sys.argv[1]
        found = counted([Path(one).read_text(encoding="utf-8") for one in sys.argv[2:]])
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        record[name] = {"version": version_of(name), "day": day} | found
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{_words(name, record[name])}: {found}")
    pages = made(record, VERSIONS.read_text(encoding="utf-8"), README.read_text(encoding="utf-8"))
    for path, text in zip((VERSIONS, README), pages, strict=True):
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
