"""Engines of the tests' own, which know nothing of msgworker."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url


def plain_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
    """What `create_engine` makes.

    Without TLS options in the URL PyMySQL reads all certificates of the machine for each
    connection, which takes longer than all else that is done on most of them.
    """
    parsed = make_url(url)
    if parsed.get_driver_name() == "pymysql" and not any("ssl" in key for key in parsed.query):
        options["connect_args"] = {"ssl_disabled": True}
    return sa.create_engine(url, **options)
