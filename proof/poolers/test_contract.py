"""The core of the contract suite through PgBouncer; a part of `make proof` is the rest of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import variants
from tests.names import marked, node_of
from tests.servers import VARIABLES, CannotHave, PgBouncer

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_core_of_the_contract_holds_through_a_pooler(servers: Any) -> None:
    try:
        url = servers.url("postgresql")
        pooler = PgBouncer(url, "transaction")
        pooler.prepare()
        pooler.remove()
    except CannotHave as reason:
        pytest.skip(str(reason))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {VARIABLES["postgresql"]: url, variants.VARIABLE: "pgbouncer-transaction"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, *sorted(map(node_of, marked("core")))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= 8
