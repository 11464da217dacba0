"""Says as JSON what becomes of our statements and of its errors with cx_Oracle; where it is
installed."""

from __future__ import annotations

import json
from typing import Any

import cx_Oracle
import sqlalchemy as sa

from msgworker import MessageTable
from msgworker.dialects import trouble
from tests.oracle.test_errors import ALL, CxDetails
from tests.oracle_lint import lint
from tests.test_ddl import oracle_statements


def at_a_start() -> str:
    engine = sa.create_engine("oracle+cx_oracle://u:p@127.0.0.1:1/?service_name=x")
    try:
        engine.connect()
    except sa.exc.DBAPIError as error:
        return f"{trouble(error).value}: {error.orig}"
    return "connected"


def main() -> None:
    with_it = oracle_statements(MessageTable(), driver="cx_oracle")
    with_oracledb = oracle_statements(MessageTable())
    errors: list[tuple[Any, Any, Any]] = [
        (name, kind, cx_Oracle.DatabaseError(CxDetails(name))) for name, kind in ALL
    ]
    told = {
        "version": cx_Oracle.version,
        "statements": len(with_it),
        "other statements": sorted(set(with_it) ^ set(with_oracledb)),
        "refused by Oracle": [sql for sql in with_it if lint(sql)],
        "misunderstood": [
            name
            for name, kind, error in errors
            if {trouble(error), trouble(sa.exc.DBAPIError.instance("", {}, error, Exception))}
            != {kind}
        ],
        "at a start without client libraries": at_a_start(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
