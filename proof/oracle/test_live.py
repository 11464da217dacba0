"""proof/oracle_live.sh in dry form: over the stand-in, with one file of the suite."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from proof.oracle import standins
from proof.oracle.schema import MARK, NotOurs, emptied
from tests.engines import plain_engine
from tests.plugin import Database

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "proof" / "oracle_live.sh"


@pytest.fixture
def with_password(empty: Database) -> Iterator[str]:
    """The URL of a login of its own, whose password is to be in no file."""
    base = sa.make_url(standins.engine_of(empty.url))
    name, password = f"mw_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    admin = plain_engine(base, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE USER {name} IDENTIFIED BY '{password}'")
        conn.exec_driver_sql(f"GRANT ALL ON {base.database}.* TO {name}")
        yield standins.text(sa.make_url(empty.url).set(username=name, password=password))
        conn.exec_driver_sql(f"DROP USER {name}")


def script(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(SCRIPT), str(folder / "out")],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_script_for_a_real_oracle_runs_and_packs_what_it_found(
    with_password: str, tmp_path: Path
) -> None:
    done = script(
        tmp_path,
        MSGWORKER_TEST_ORACLE_URL=with_password,
        ORACLE_LIVE_TESTS="tests/contract/test_claim.py",
        PYTHONPATH=standins.SITE,
    )
    files = {path.stem: path.read_text() for path in (tmp_path / "out").glob("*.txt")}
    assert done.returncode == 0, (done.stdout, done.stderr, files)
    assert files.keys() == {"facts", "suite", "plans", "bench"}
    assert "server 19.0.0.0.0 thin" in files["facts"]
    assert " passed" in files["suite"]
    assert "no plan" not in files["plans"]
    assert "msgworker_message_oldest" in files["plans"]
    assert "SET status=2" in files["plans"]  # in a block
    assert "messages/s" in files["bench"]
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert {Path(name).stem for name in archive.getnames()} == {"out", *files}


def test_the_script_asks_for_a_url_first(tmp_path: Path) -> None:
    done = script(tmp_path, MSGWORKER_TEST_ORACLE_URL="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "MSGWORKER_TEST_ORACLE_URL=" in done.stderr
    assert not (tmp_path / "out").exists()


def test_only_a_schema_of_the_tests_own_is_emptied(empty: Database) -> None:
    with empty.engine().begin() as conn:
        conn.exec_driver_sql("CREATE TABLE customers (id INTEGER)")
    with pytest.raises(NotOurs, match=r"not empty \(customers\)"):
        emptied(empty.url)
    with empty.engine().begin() as conn:
        conn.exec_driver_sql("DROP TABLE customers")
    emptied(empty.url)
    with empty.engine().begin() as conn:
        conn.exec_driver_sql("CREATE TABLE made (id INTEGER)")
    emptied(empty.url)
    with empty.engine().connect() as conn:
        assert sa.inspect(conn).get_table_names() == [MARK]
