"""The version of the schema, against the one of this package."""

from __future__ import annotations

from msgworker.errors import SchemaError
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.tables import upgrade
from msgworker.table import NEWEST

UPGRADE = "run `msgworker db upgrade`"


def version(p: Patient) -> list[Finding]:
    """What is missing was told by other checks; this one says how to get all of it."""
    if not p.exists or p.live is None:
        return []
    try:
        plan = upgrade.plan(p.conn, p.spec, p.dialect, inspector=p.inspector)
    except SchemaError as error:
        return [needed("version", str(error))] if "version" in str(error) else []
    if plan.found < NEWEST:
        text = f"the schema is version {plan.found}, this package wants {NEWEST}: {UPGRADE}"
        return [advised("version", text)]
    if plan.recorded is not None and plan.recorded > NEWEST:
        text = (
            f"the schema is version {plan.recorded}, of a later package, on which this one "
            f"({NEWEST}) works"
        )
        return [fine("version", text)]
    return [fine("version", f"the schema is version {NEWEST}, as this package wants")]
