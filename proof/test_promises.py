"""No promise is proved by less than proof/promises.txt says."""

from __future__ import annotations

import pytest

from proof.conftest import COLLECTED
from proof.promises import FILE, on, table
from tests.names import homes


def test_the_table_of_promises_is_in_step(pytestconfig: pytest.Config) -> None:
    names = pytestconfig.stash[COLLECTED]
    if {file for files in homes().values() for file in files} - {n.split("::")[0] for n in names}:
        pytest.skip("only some files were collected")
    assert table(on(names)) == FILE.read_text(), "write it anew: python -m proof.promises"
