"""Databases of the stand-in over MariaDB that are ready, as those of other servers."""

from __future__ import annotations

import sqlalchemy as sa

from proof.oracle.mariadb import COLLATION
from proof.oracle.standins import over
from tests.ready import Ready

collated = f"CHARACTER SET utf8mb4 COLLATE {COLLATION}"


class ReadyOverMariaDB(Ready):
    """They are emptied as MariaDB's, and made by the App as Oracle's."""

    def app_url(self, url: sa.URL) -> sa.URL:
        return over(url, str(url.database))
