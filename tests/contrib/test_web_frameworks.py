"""docs/guides/frameworks.md with the real FastAPI, Flask-SQLAlchemy and async engines."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from tests.support.rows import Table
from tests.support.waiting import until

MAIN = Path(__file__).resolve().parents[2] / "samples" / "fastapi_crm" / "main.py"


@pytest.fixture
def crm(database: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The sample, on the test's database."""
    monkeypatch.setenv("CRM_DATABASE", database.url)
    spec = importlib.util.spec_from_file_location("fastapi_crm", MAIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "fastapi_crm", module)
    spec.loader.exec_module(module)
    yield module
    module.Base.metadata.drop_all(module.queue.engine)


@pytest.mark.filterwarnings("ignore:Using `httpx` with")  # its test client asks for httpx2
def test_a_request_of_fastapi_sends_in_its_session_and_a_worker_of_the_lifespan_handles(
    crm, monkeypatch
):
    from fastapi.testclient import TestClient

    monkeypatch.setenv("CRM_WORKER", "1")
    with TestClient(crm.web) as client:
        made = client.post("/customers/C-1/invoices", json={"amount": 5}).json()
        assert client.post("/customers/C-1/invoices", json={"amount": -1}).status_code == 400
        shown = f"/invoices/{made['invoice']}"
        until(lambda: client.get(shown).json() == {"booked": True}, "booked")
    table = Table(crm.queue)
    assert table.rows("msg_id", "status", "object_id") == [(made["message"], 2, "C-1")]
    assert crm.queue.ops.instances() == []  # the worker has stopped with the program


def test_a_session_of_flask_sqlalchemy_sends_in_its_transaction(sqlite_app):
    from flask import Flask
    from flask_sqlalchemy import SQLAlchemy

    queue: App = sqlite_app
    web, db = Flask(__name__), SQLAlchemy()
    web.config["SQLALCHEMY_DATABASE_URI"] = str(queue.engine.url)
    db.init_app(web)

    @web.post("/customers/<number>/invoices/<int:amount>")
    def invoice(number: str, amount: int) -> Any:
        msg_id = queue.send(db.session, "t", {"amount": amount}, object_id=number)
        if amount == 0:
            db.session.rollback()
            return {}, 400
        db.session.commit()
        return {"message": msg_id}

    client = web.test_client()
    made = client.post("/customers/C-1/invoices/5").get_json()
    assert client.post("/customers/C-1/invoices/0").status_code == 400
    assert Table(queue).column("msg_id") == [made["message"]]
    with web.app_context():
        db.engine.dispose()
    assert sa.inspect(queue.engine).has_table("msgworker_message")
