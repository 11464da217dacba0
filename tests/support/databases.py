"""On which of the databases a test runs."""

from __future__ import annotations

import pytest

SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""Where the database makes no difference."""
SERVERS = pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
