"""What a check has found."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """needed: msgworker does not work, or breaks a promise. advised: it works, with less.
    fine: nothing to do."""

    NEEDED = "needed"
    ADVISED = "advised"
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. check: what was looked at. mend: statements, in order; () = nothing to run."""

    check: str
    severity: Severity
    text: str
    mend: tuple[str, ...] = ()
    detail: str | None = None


def needed(check: str, text: str, *mend: str, detail: str | None = None) -> Finding:
    return Finding(check, Severity.NEEDED, text, mend, detail)


def advised(check: str, text: str, *mend: str, detail: str | None = None) -> Finding:
    return Finding(check, Severity.ADVISED, text, mend, detail)


def fine(check: str, text: str, *, detail: str | None = None) -> Finding:
    return Finding(check, Severity.FINE, text, (), detail)
