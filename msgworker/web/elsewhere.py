"""Locks that are not kept in the database: in Redis, ZooKeeper, or another lock centre."""

from __future__ import annotations

import threading

from msgworker.coordination.centres import open_centre, place_of, secrets_of_centre
from msgworker.coordination.lease import LockCentre
from msgworker.errors import LocksUnavailable


class Elsewhere:
    """A lock centre, opened when it is first asked: the dashboard starts while it is away, too.

    where: the centre, or its URL.
    """

    def __init__(self, where: LockCentre | str) -> None:
        self._url = where if isinstance(where, str) else ""
        self._opened: LockCentre | None = None if isinstance(where, str) else where
        self._opening = threading.Lock()
        self.secrets = secrets_of_centre(self._url)

    def centre(self) -> LockCentre:
        """The centre. Raises ConfigError, LocksUnavailable; the latter also at once while another
        thread waits for it."""
        if self._opened is not None:
            return self._opened
        if not self._opening.acquire(blocking=False):
            raise LocksUnavailable("the lock centre has not answered yet")
        try:
            if self._opened is None:
                self._opened = open_centre(self._url, None)
            return self._opened
        finally:
            self._opening.release()

    @property
    def place(self) -> str:
        """What and where it is, without passwords; "" before it has answered."""
        return "" if self._opened is None else place_of(self._opened)

    def close(self) -> None:
        """Close what was opened here."""
        if self._url and self._opened is not None:
            self._opened.close()
