"""What each code of Oracle's and of its drivers means, for the objects of both drivers."""

from __future__ import annotations

import oracledb
import pytest
import sqlalchemy as sa

from msgworker.db.database import Trouble
from msgworker.db.errors import no_connection_left, trouble, violates
from proof.oracle.codes import ALL, CxDetails
from proof.oracle.errors import by_name


class CxError(Exception):
    """As cx_Oracle raises it; the driver need not be there."""

    __module__ = "cx_Oracle"


def of_cx_oracle(name: str) -> Exception:
    return CxError(CxDetails(name))


@pytest.mark.parametrize(("name", "kind"), ALL, ids=[name for name, _ in ALL])
def test_each_code_of_oracle_has_its_meaning_with_both_drivers(name: str, kind: Trouble) -> None:
    for error in (by_name(name), of_cx_oracle(name)):
        assert trouble(error) is kind
        wrapped = sa.exc.DBAPIError.instance("UPDATE t", {}, error, Exception)
        assert trouble(wrapped) is kind


def test_a_lost_session_is_known_below_the_driver_s_own_code() -> None:
    error = by_name("ORA-03113")
    assert str(error).startswith("DPY-4011")
    assert trouble(error) is Trouble.LOST


@pytest.mark.parametrize(
    "where", ["ORA-00604: error at recursive SQL level 1", "ORA-12801: in P001"]
)
@pytest.mark.parametrize(("code", "kind"), [("01653", Trouble.LOST), ("00932", Trouble.OTHER)])
def test_an_error_within_the_server_has_the_meaning_of_its_cause(
    where: str, code: str, kind: Trouble
) -> None:
    error = oracledb.DatabaseError(f"{where}\nORA-{code}: as it says\nORA-06512: at line 1")
    assert trouble(error) is kind


@pytest.mark.parametrize("name", ["ORA-00018", "ORA-00020", "ORA-02391", "ORA-12516", "ORA-12519"])
def test_a_server_without_sessions_left_is_known_with_both_drivers(name: str) -> None:
    assert no_connection_left(by_name(name))
    assert no_connection_left(of_cx_oracle(name))


@pytest.mark.parametrize(
    "text",
    [
        "ORA-00001: unique constraint (CRM.T_GUARD) violated",
        "ORA-00001: unique constraint (CRM.T_GUARD) violated on table CRM.T columns (SYS_NC1$)\n"
        "ORA-03301: (ORA-00001 details) row with column values (SYS_NC1$:'a') already exists",
    ],
    ids=["19c", "23ai"],
)
def test_the_guard_is_told_from_other_unique_indexes(text: str) -> None:
    error = sa.exc.IntegrityError("UPDATE t", {}, oracledb.IntegrityError(text))
    assert violates(error, "t_guard")
    assert not violates(error, "t_pk")
