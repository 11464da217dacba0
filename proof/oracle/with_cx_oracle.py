"""Says as JSON what becomes of cx_Oracle's own errors; where it is installed."""

from __future__ import annotations

import json
from typing import Any

import cx_Oracle
import sqlalchemy as sa

from msgworker.db.errors import trouble
from proof.oracle.codes import ALL, CxDetails


def at_a_start() -> str:
    engine = sa.create_engine("oracle+cx_oracle://u:p@127.0.0.1:1/?service_name=x")
    try:
        engine.connect()
    except sa.exc.DBAPIError as error:
        return f"{trouble(error).value}: {error.orig}"
    return "connected"


def main() -> None:
    errors: list[tuple[Any, Any, Any]] = [
        (name, kind, cx_Oracle.DatabaseError(CxDetails(name))) for name, kind in ALL
    ]
    told = {
        "version": cx_Oracle.version,
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
