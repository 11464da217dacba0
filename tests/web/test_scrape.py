"""/metrics of the dashboard."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from msgworker import App, events
from msgworker.app import events_of
from msgworker.web import site
from tests.support.web import browse


def test_the_dashboard_counts_from_the_first_scrape_on(full_app, browser):
    assert not events_of(full_app).wants(events.Looked)
    first = browser.get("/metrics")
    assert (first.status_code, first.headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert events_of(full_app).wants(events.Looked)
    full_app.add_handler("settle", lambda msg: None)
    full_app.drain(linger=0)
    found = {
        (one.name, one.labels.get("topic")): one.value
        for family in text_string_to_metric_families(browser.get("/metrics").text)
        for one in family.samples
        if one.labels.get("outcome", "done") == "done"  # the others begin at 0
    }
    assert found["msgworker_messages_total", "settle"] == 9
    assert found["msgworker_database_up", None] == 1


def test_a_process_without_the_extra_says_what_to_install(browser, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = browser.get("/metrics")
    assert (found.status_code, "msgworker[metrics]" in found.text) == (501, True)


def test_a_scrape_is_answered_while_the_database_is_not(tmp_path):
    app = App(f"sqlite:///{tmp_path}/missing/folder.db")
    client = browse(app)
    found = client.get("/metrics")
    assert found.status_code == 200
    assert "\nmsgworker_database_up 0.0\n" in found.text


def test_a_scrape_that_gets_no_turn_is_answered_without_the_database(full_app, monkeypatch):
    client = browse(full_app)
    monkeypatch.setattr(site, "WAITING", 0)  # as if all reads hung
    found = client.get("/metrics")
    assert found.status_code == 200
    assert "\nmsgworker_database_up 0.0\n" in found.text
    assert "msgworker_table_messages{" not in found.text
