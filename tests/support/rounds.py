"""An instance whose rounds are called by hand."""

from __future__ import annotations

from msgworker.clock import clock
from msgworker.instance.instance import Instance


def loses_its_lease(one: Instance, new_id: str = "new-self") -> None:
    """It goes on under this id, of which it believes that it has a lease."""
    one.runtime.forget_all(new_id)
    one.runtime.identity.registered(clock() + 3600.0)


def fetch(one: Instance) -> int:
    """One round of the claim loop that looks at everything afresh."""
    one.finder.search.forget()
    return one.fetcher.run_once()
