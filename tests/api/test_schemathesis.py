"""The API against its own OpenAPI document: schemathesis finds nothing.

Requests that the document allows may be refused by their meaning (a cursor of another list, a
reason that is needed), so that check is left out, as is that of tokens, which test_api has.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from msgworker import App
from msgworker.web.api import ENDPOINTS
from msgworker.web.api import document as openapi
from tests.api.conftest import TOKENS, dashboard_of
from tests.support.ops import DONE, FAILED, NEW, put


def found_in(app: App, examples: int) -> list[str]:
    """What it finds in so many valid and so many invalid requests of each operation."""
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

    put(app, ("a", NEW), ("a", FAILED), ("b", DONE))
    document = openapi.document(ENDPOINTS)
    schema = schemathesis.openapi.from_dict(document)
    schema.app = dashboard_of(app, deadline=30)
    schema.config.update(base_url="http://127.0.0.1:8080/api/v1")
    found: list[str] = []
    asked: list[str] = []

    def check(case: Any) -> None:
        token = {"authorization": f"Bearer {TOKENS['admin']}"}
        case.headers = dict(case.headers or {}) | token
        answer = case.call()
        asked.append(case.operation.label)
        try:
            case.validate_response(answer, excluded_checks=[ignored_auth, positive_data_acceptance])
        except BaseExceptionGroup as errors:
            found.extend(f"{case.operation.label}: {error}" for error in errors.exceptions)

    limits = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    for result in schema.get_all_operations():
        for mode in schemathesis.GenerationMode:
            limits(given(result.ok().as_strategy(generation_mode=mode))(check))()
    schema.app.site.close()
    assert set(asked) == {f"{one.method} {one.path.replace(':path', '')}" for one in ENDPOINTS}
    return found


@pytest.mark.long
def test_schemathesis_finds_nothing(sqlite_app):
    assert found_in(sqlite_app, 2) == []


@pytest.mark.long
def test_schemathesis_finds_nothing_in_many_requests(app):
    assert found_in(app, 12) == []
