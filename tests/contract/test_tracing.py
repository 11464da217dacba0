"""Spans of OpenTelemetry for what is sent and handled, and the context kept with a message."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry import baggage, context, trace
from opentelemetry.trace import StatusCode

from msgworker import App, BatchContext, MessageTable, Reject, RetryLater, testing
from msgworker.doctor import Severity
from msgworker.errors import ConfigError
from msgworker.events import Dead
from msgworker.tracing import tracer
from tests.support.rows import Table, edit
from tests.support.spans import PARENT, Spans, ids, linked, recorded
from tests.support.timers import put_back

NOW = {"linger": 0, "threads": 1}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    with recorded(monkeypatch) as found:
        yield found


@pytest.fixture
def traced(make_app: Any, app: App, spans: Spans) -> App:
    """An App with tracing, on the tables of another one."""
    made: App = make_app(tracing=True)
    return made


def send(app: App, payload: Any = None, topic: str = "t", **options: Any) -> Any:
    with app.engine.begin() as conn:
        return app.send(conn, topic, payload, **options)


def test_the_span_of_a_handler_is_linked_to_that_of_the_producer(traced, spans):
    traced.add_handler("t", lambda msg: None)
    msg_id = send(traced, {"n": 1}, object_id="a")
    assert traced.drain(**NOW).done == 1
    (sent,), (handled,) = spans.sent, spans.handled
    assert (sent.name, handled.name) == ("send t", "process t")
    assert linked(handled) == ids([sent])
    assert handled.parent is None
    common = {"messaging.system": "msgworker", "messaging.destination.name": "t"}
    common["messaging.message.id"] = str(msg_id)
    for span, operation in ((sent, "send"), (handled, "process")):
        named = {"messaging.operation.name": operation, "messaging.operation.type": operation}
        assert dict(span.attributes).items() >= (common | named).items()
        assert span.status.status_code is StatusCode.UNSET
    assert handled.attributes["messaging.msgworker.try"] == 1
    assert handled.attributes["messaging.msgworker.outcome"] == "done"


def test_the_span_of_a_producer_is_a_child_of_that_of_the_caller(traced, spans):
    with trace.get_tracer("caller").start_as_current_span("purchase") as caller:
        send(traced)
    assert spans.sent[0].parent.span_id == caller.get_span_context().span_id


def test_a_batch_has_one_span_with_a_link_for_each_producer(traced, spans):
    @traced.handler("t", batch=10)
    def handle(messages: list[Any]) -> None: ...

    for name in "abc":
        send(traced, object_id=name)
    assert traced.drain(**NOW).done == 3
    assert sum(s.attributes["messaging.batch.message_count"] for s in spans.handled) == 3
    assert {one for s in spans.handled for one in linked(s)} == set(ids(spans.sent))
    assert len(spans.sent) == 3


def test_messages_that_are_sent_at_once_are_so_with_headers_too(traced, app, spans):
    ways = []
    for one in (app, traced):
        sent: list[str] = []
        sa.event.listen(
            one.engine, "before_cursor_execute", lambda *of, to=sent: to.append(str(of[2]))
        )
        with one.engine.begin() as conn:
            one.send_many(conn, "t", [(n, "a") for n in range(50)])
        ways.append(["unnest" in text for text in sent if text.startswith("INSERT")])
    assert ways == [[app.tables.database.arrays]] * 2
    kept = Table(traced).column("headers")
    assert kept[:50] == [None] * 50
    assert len(set(kept[50:])) == 1
    assert kept[50] is not None


def test_a_transactional_batch_of_one_send_many_has_one_link(traced, spans):
    @traced.handler("t", batch=10, transactional=True)
    def handle(messages: list[Any]) -> None: ...

    with traced.engine.begin() as conn:
        traced.send_many(conn, "t", [(n, "a") for n in range(4)])
    assert traced.drain(**NOW).done == 4
    assert [s.attributes["messaging.batch.message_count"] for s in spans.sent] == [4]
    for span in spans.handled:
        assert linked(span) == ids(spans.sent)


def test_each_call_of_a_group_has_a_span(traced, spans):
    @traced.handler("t", group=10, transactional=True)
    def handle(msg: Any) -> None: ...

    sent = [send(traced, object_id=name) for name in "ab"]
    assert traced.drain(**NOW).done == 2
    found = sorted(int(s.attributes["messaging.message.id"]) for s in spans.handled)
    assert found == sent


@pytest.mark.parametrize("transactional", [False, True])
def test_what_a_handler_sends_is_a_child_of_its_span(traced, spans, transactional):
    @traced.handler("t", transactional=transactional)
    def handle(msg: Any, ctx: Any) -> None:
        ctx.send("u")

    traced.add_handler("u", lambda msg: None)
    send(traced)
    assert traced.drain(**NOW).done == 2
    first, second = spans.handled
    child = spans.sent[1]
    assert child.parent.span_id == first.context.span_id
    assert linked(second) == ids([child])


def test_an_async_handler_runs_inside_its_span(sqlite_traced, spans):
    app, seen = sqlite_traced, []

    @app.handler("t")
    async def handle(msg: Any) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    send(app)
    assert app.drain(**NOW).done == 1
    assert seen == ids(spans.handled)


@pytest.fixture
def sqlite_traced(sqlite_app: App, spans: Spans) -> App:
    return App(sqlite_app.engine, tracing=True, backoff_seconds=0)


def test_each_try_has_a_span_and_those_that_fail_say_why(sqlite_traced, spans):
    app = sqlite_traced

    @app.handler("t")
    def handle(msg: Any) -> None:
        if msg.error_try_times == 0:
            raise LookupError("no such customer")
        if msg.error_try_times == 1:
            raise Reject("never")

    send(app)
    app.drain(linger=0, retry_linger=5, threads=1)
    assert [s.attributes["messaging.msgworker.try"] for s in spans.handled] == [1, 2]
    first, second = spans.handled
    assert first.attributes["error.type"] == "LookupError"
    assert first.status.status_code is StatusCode.ERROR
    assert "no such customer" in first.status.description
    assert second.attributes["messaging.msgworker.outcome"] == "dead"
    assert linked(first) == linked(second) == ids(spans.sent)


def test_a_postponed_message_is_no_failure(sqlite_traced, spans):
    app = sqlite_traced

    @app.handler("t")
    def handle(msg: Any) -> None:
        raise RetryLater(3600)

    send(app)
    app.drain(**NOW)
    (handled,) = spans.handled
    assert handled.attributes["messaging.msgworker.outcome"] == "later"
    assert handled.status.status_code is StatusCode.UNSET


def test_a_payload_that_cannot_be_read_is_a_failed_span(sqlite_traced, spans):
    app = sqlite_traced
    app.add_handler("t", lambda msg: None)
    edit(app, send(app, 1), payload="{")
    app.drain(**NOW)
    assert Table(app).column("status") == [-1]
    (handled,) = spans.handled
    assert handled.status.status_code is StatusCode.ERROR
    assert linked(handled) == ids(spans.sent)


def test_a_failed_batch_is_one_failed_span_and_then_one_for_each(sqlite_traced, spans):
    app = sqlite_traced

    @app.handler("t", batch=10, transactional=True)
    def handle(messages: list[Any]) -> None:
        if len(messages) > 1:
            raise ValueError("together")

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(n, "a") for n in range(3)])
    assert app.drain(**NOW).done == 3
    together, *alone = spans.handled
    assert together.attributes["error.type"] == "ValueError"
    assert together.attributes["messaging.msgworker.outcome"] == "again"
    assert len(alone) == 3
    assert {s.status.status_code for s in alone} == {StatusCode.UNSET}


def test_what_a_batch_fails_behind_a_head_is_in_its_span_and_has_its_time(sqlite_traced, spans):
    app, dead = sqlite_traced, list[Any]()
    app.on(Dead, dead.append)

    @app.handler("t", batch=10, transactional=True)
    def handle(messages: list[Any], ctx: BatchContext) -> None:
        for message in messages:
            if message.payload == 1:
                ctx.fail(message, Reject("no"))

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(n, "a") for n in range(2)])
    report = app.drain(**NOW)
    assert (report.done, report.failed) == (1, 1)
    (together,) = spans.handled
    assert together.attributes["messaging.msgworker.outcome"] == "dead"
    assert together.status.status_code is StatusCode.ERROR
    assert [event.span is not None and event.span[1] is not None for event in dead] == [True]


def test_a_message_that_is_not_sent_is_a_failed_span(sqlite_traced, spans):
    with pytest.raises(ConfigError), sqlite_traced.engine.begin() as conn:
        sqlite_traced.send(conn, "t", delay=-1)
    assert spans.sent[0].attributes["error.type"] == "msgworker.errors.ConfigError"


def test_headers_of_a_plain_insert_are_linked_and_wrong_ones_are_ignored(traced, spans, caplog):
    traced.add_handler("t", lambda msg: None)
    wrong = ["{", "[]", "null", '{"traceparent": 5}', '{"traceparent": "00-zz"}', ""]
    right = json.dumps({"Traceparent": PARENT, "other": [1]})
    for headers in (right, *wrong):
        with traced.engine.begin() as conn:
            conn.execute(
                sa.text("INSERT INTO msgworker_message (topic, headers) VALUES ('t', :h)"),
                {"h": headers},
            )
    with caplog.at_level(logging.DEBUG, "msgworker.app"):
        assert traced.drain(**NOW).done == 7
    told = [r for r in caplog.records if "hold no trace context" in r.getMessage()]
    assert len(told) in (len(wrong), len(wrong) - 1)  # Oracle has no empty text
    assert [s.links[0].context.trace_id for s in spans.handled if s.links] == [
        int(PARENT.split("-")[1], 16)
    ]


@pytest.mark.requires("unique_keys")
def test_a_replaced_message_has_the_context_of_the_new_one(traced, spans):
    traced.add_handler("t", lambda msg: None)
    for n in (1, 2):
        send(traced, n, unique_key="k", on_duplicate="replace")
    assert traced.drain(**NOW).done == 1
    assert linked(spans.handled[0]) == ids(spans.sent[1:])


def test_without_tracing_headers_are_neither_written_nor_read(app, spans):
    seen: list[str] = []

    @sa.event.listens_for(app.engine, "before_cursor_execute")
    def _(conn: Any, cursor: Any, text: str, *rest: Any) -> None:
        seen.append(text)

    app.add_handler("t", lambda msg: None)
    send(app)
    seen_before = len(seen)
    assert app.drain(**NOW).done == 1
    assert 0 < seen_before < len(seen)
    assert [text for text in seen if "headers" in text] == []
    assert spans.all() == []
    assert Table(app).column("headers") == [None]


def test_a_run_of_an_object_keeps_the_context_of_each(traced, spans):
    traced.add_handler("t", lambda msg: None)
    for n in range(3):
        send(traced, n, object_id="a")
    assert traced.drain(**NOW).done == 3
    assert [linked(s) for s in spans.handled] == [[one] for one in ids(spans.sent)]


def test_a_table_without_the_column_has_spans_without_links(app, make_app, spans, caplog):
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_message DROP COLUMN headers")
    old = make_app(tracing=True)
    old.add_handler("t", lambda msg: None)
    send(old)
    assert old.drain(**NOW).done == 1
    assert [len(spans.sent), len(spans.handled)] == [1, 1]
    assert linked(spans.handled[0]) == []
    assert "has no column for headers" in caplog.text
    told = [one.text for one in old.ops.doctor() if "headers" in one.text]
    assert ["traces of producers end" in text for text in told] == [True]
    assert old.create_schema() == ["headers"]
    send(old)
    assert old.drain(**NOW).done == 1
    assert linked(spans.handled[1]) == ids(spans.sent[1:])


def test_a_column_of_that_name_in_a_table_of_yours_is_used_only_if_it_is_named(make_app, spans):
    plain = make_app(table=MessageTable("crm_msg"), tracing=True)
    with plain.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE crm_msg (msg_id INTEGER PRIMARY KEY, object_id VARCHAR(50), topic "
            "VARCHAR(50), status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 "
            "NOT NULL, claimed_by VARCHAR(64), headers VARCHAR(10), trace VARCHAR(80))"
        )
        conn.exec_driver_sql(
            "INSERT INTO crm_msg (msg_id, topic, headers, trace) VALUES (1, 't', 'x', '{}')"
        )
    plain.create_schema()
    assert plain.tables.max_headers == 0
    named = make_app(table=MessageTable("crm_msg", headers="trace"), tracing=True)
    named.add_handler("t", lambda msg: None)
    assert named.drain(**NOW).done == 1
    assert named.tables.max_headers == (2000 if named.tables.database.loose_types else 80)
    assert linked(spans.handled[0]) == []


def test_a_context_that_does_not_fit_is_left_out_or_kept_without_its_state(spans):
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
    from opentelemetry.trace.span import TraceState

    from msgworker.tracing import Tracer

    state = TraceState([("vendor", "x" * 100)])
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
    span, tracer = NonRecordingSpan(context), Tracer()
    whole = json.loads(tracer.headers(span, 2000))
    assert set(whole) == {"traceparent", "tracestate"}
    assert set(json.loads(tracer.headers(span, 100))) == {"traceparent"}
    assert tracer.headers(span, 50) is None


def test_tracing_without_the_package_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'msgworker\[otel\]'"):
        App("sqlite:///no-such-file.db", tracing=True)
    App("sqlite:///no-such-file.db")


def test_tracing_is_true_or_false():
    with pytest.raises(ConfigError, match="tracing must be True or False, got 'yes'"):
        App("sqlite://", tracing="yes")


def test_without_an_sdk_nothing_is_kept_with_a_message(sqlite_app):
    app = App(sqlite_app.engine, tracing=True)
    app.add_handler("t", lambda msg: None)
    send(app)
    assert app.drain(**NOW).done == 1
    assert Table(app).column("headers") == [None]


def test_a_group_that_is_rolled_back_has_one_failed_span_and_no_done_ones(sqlite_traced, spans):
    app = sqlite_traced

    @app.handler("t", group=10, transactional=True)
    def handle(msg: Any) -> None:
        if msg.payload == 2 and msg.error_try_times == 0:
            raise LookupError("no such customer")

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(n, "a") for n in range(3)])
    sent = Table(app).column("msg_id")
    assert app.drain(linger=0, retry_linger=5, threads=1).done == 3
    told = [
        (int(s.attributes["messaging.message.id"]), s.attributes["messaging.msgworker.outcome"])
        for s in spans.handled
    ]
    assert told[:3] == [(msg_id, "again") for msg_id in sent]
    failed = [s.status.status_code is StatusCode.ERROR for s in spans.handled[:3]]
    assert failed == [False, False, True]
    assert sorted(told[3:]) == sorted([(m, "done") for m in sent] + [(sent[2], "failed")])
    assert all(linked(s) for s in spans.handled)


def test_a_message_that_cannot_be_read_has_a_failed_span_also_beside_a_batch(sqlite_traced, spans):
    app = sqlite_traced

    @app.handler("t", batch=10)
    def handle(messages: list[Any]) -> None: ...

    bad, *_ = [send(app, n, object_id=str(n)) for n in range(3)]
    edit(app, bad, payload="{")
    assert app.drain(**NOW).done == 2
    failed = [s for s in spans.handled if s.status.status_code is StatusCode.ERROR]
    assert [s.attributes["messaging.message.id"] for s in failed] == [str(bad)]
    (good,) = [s for s in spans.handled if s not in failed]
    assert good.attributes["messaging.batch.message_count"] == 2
    assert good.attributes["messaging.msgworker.outcome"] == "done"


@pytest.mark.parametrize("transactional", [False, True])
def test_items_have_spans_in_that_of_the_try_on_whatever_thread(
    sqlite_traced, spans, transactional
):
    app, inner = sqlite_traced, []

    def item(n: int, *connection: Any) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)
        if n == 1:
            raise LookupError("secret of item 1")

    @app.handler("t")
    def handle(msg: Any, ctx: Any) -> None:
        with ThreadPoolExecutor(2) as pool:
            options = {"transactional_items": True} if transactional else {"executor": pool}
            ctx.fan_out(item, [0, 1, 2], **options)

    send(app)
    assert app.drain(**NOW).done == 1
    items = [s for s in spans.all() if s.name == "item t"]
    assert sorted(ids(items)) == sorted(inner)
    assert len(items) == 3
    assert {s.parent.span_id for s in items} == set(ids(spans.handled))
    (failed,) = [s for s in items if s.status.status_code is StatusCode.ERROR]
    assert failed.attributes["error.type"] == "LookupError"
    assert "secret" not in str(failed.to_json())


def test_the_function_of_items_is_sent_to_another_process_without_its_span(spans):
    fn = pickle.loads(pickle.dumps(tracer(True).around_items("t", str)))
    assert fn(5) == "5"
    assert spans.all() == []


def test_a_rerun_is_linked_to_the_same_producer(sqlite_traced, spans):
    app = sqlite_traced

    @app.handler("t")
    def handle(msg: Any) -> None:
        raise Reject("no")

    msg_id = send(app)
    app.drain(**NOW)
    assert app.ops.rerun([msg_id]).changed == 1
    app.drain(**NOW)
    assert [linked(s) for s in spans.handled] == [ids(spans.sent)] * 2


def test_a_tick_has_the_span_of_its_producer_and_only_if_it_sends(sqlite_traced, spans):
    app = sqlite_traced
    app.every("1h", topic="t", name="hourly")
    app.add_handler("t", lambda msg: None)
    testing.drain(app, schedules=True)
    assert spans.all() == []
    put_back(app, "hourly", 10)
    assert testing.drain(app, schedules=True).done == 1
    (sent,), (handled,) = spans.sent, spans.handled
    assert (sent.name, linked(handled)) == ("send t", ids([sent]))
    assert "messaging.batch.message_count" not in sent.attributes


def test_a_schedule_that_is_run_now_has_the_span_of_its_producer(sqlite_traced, spans):
    app = sqlite_traced
    app.every("1h", topic="t", name="hourly")
    app.add_handler("t", lambda msg: None)
    testing.drain(app, schedules=True)
    with trace.get_tracer("caller").start_as_current_span("by hand") as caller:
        assert app.ops.run_now("hourly", dry_run=True) == 1
        assert spans.sent == []
        done = app.ops.run_now("hourly")
    assert testing.drain(app, schedules=True).done == 1
    (sent,), (handled,) = spans.sent, spans.handled
    assert sent.parent.span_id == caller.get_span_context().span_id
    assert linked(handled) == ids([sent])
    assert sent.attributes["messaging.message.id"] == str(done.sample[0].msg_id)
    assert done.sample[0].trace_id == f"{sent.context.trace_id:032x}"


@pytest.mark.parametrize("dies", [False, True])
def test_a_message_about_another_one_keeps_its_context(sqlite_traced, spans, dies):
    app = sqlite_traced

    @app.handler("t", on_done="t.done", on_dead="t.dead")
    def handle(msg: Any) -> None:
        if dies:
            raise Reject("no")

    app.add_handler("t.done", lambda msg: None)
    app.add_handler("t.dead", lambda msg: None)
    send(app)
    app.drain(**NOW)
    first, about = spans.handled
    assert about.name == ("process t.dead" if dies else "process t.done")
    assert linked(first) == linked(about) == ids(spans.sent)


def test_tests_of_handlers_have_spans(sqlite_traced, spans):
    sqlite_traced.add_handler("t", lambda msg: None)
    send(sqlite_traced)
    assert testing.drain(sqlite_traced).done == 1
    assert linked(spans.handled[0]) == ids(spans.sent)


def test_spans_say_where_the_database_is(traced, spans):
    url = traced.engine.url
    send(traced)
    attributes = spans.sent[0].attributes
    assert attributes.get("server.address") == (url.host or None)
    assert attributes.get("server.port") == url.port


def test_baggage_is_neither_kept_nor_shown(sqlite_traced, spans):
    token = context.attach(baggage.set_baggage("card", "canary-4711"))
    try:
        msg_id = send(sqlite_traced)
    finally:
        context.detach(token)
    kept = Table(sqlite_traced).one("headers")
    assert set(json.loads(kept)) == {"traceparent"}
    edit(sqlite_traced, msg_id, headers=json.dumps({"baggage": "canary-4711", **json.loads(kept)}))
    assert "canary" not in repr(sqlite_traced.ops.show(msg_id))


def test_the_trace_of_a_message_is_shown_without_tracing(app):
    trace_id = PARENT.split("-")[1]
    wrong = ["{", "5", '{"traceparent": "00-0-0-0"}', json.dumps({"traceparent": "x" + PARENT})]
    wrong += [json.dumps({"traceparent": PARENT.replace(trace_id, "0" * 32)}), None]
    for headers in (json.dumps({"Traceparent": PARENT}), *wrong):
        edit(app, msg_id := send(app), headers=headers)
        shown = app.ops.show(msg_id)
        assert shown.trace_id == (trace_id if "Traceparent" in (headers or "") else None)
        assert shown.odd == {}
    assert {one.trace_id for one in app.ops.find()} == {None}  # a list reads no headers


@pytest.mark.parametrize(
    ("kind", "word"), [("INTEGER", "must be a text"), ("VARCHAR(40)", "73 are needed")]
)
def test_a_column_that_cannot_hold_headers_is_left_alone_and_doctor_says_so(
    app, make_app, spans, kind, word, database
):
    if database.name == "sqlite" and kind != "INTEGER":
        pytest.skip("a length is no limit there")
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_message DROP COLUMN headers")
        conn.exec_driver_sql(f"ALTER TABLE msgworker_message ADD COLUMN headers {kind}")
    other = make_app(tracing=True)
    other.add_handler("t", lambda msg: None)
    send(other)
    assert other.drain(**NOW).done == 1
    assert linked(spans.handled[0]) == []
    (told,) = [one for one in other.ops.doctor() if "(headers)" in one.text]
    assert word in told.text
    assert told.severity is Severity.ADVISED
    if database.name == "sqlite":  # no column is changed there
        return
    with app.engine.begin() as conn:
        for statement in told.fix:
            conn.exec_driver_sql(statement)
    mended = make_app(tracing=True)
    send(mended)
    assert json.loads(Table(mended).column("headers")[-1])["traceparent"]


@pytest.mark.parametrize("kind", ["JSON", "JSONB"])
def test_headers_may_be_json_to_the_database(app, make_app, spans, kind, database):
    if kind == "JSONB" and database.name != "postgresql":
        pytest.skip("no such type there")
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_message DROP COLUMN headers")
        conn.exec_driver_sql(f"ALTER TABLE msgworker_message ADD COLUMN headers {kind}")
    traced = make_app(tracing=True)
    traced.add_handler("t", lambda msg, ctx: ctx.send("u"), on_done="v")
    traced.add_handler("u", lambda msg: None)
    traced.add_handler("v", lambda msg: None)
    msg_id = send(traced)
    assert traced.drain(**NOW).done == 3
    assert len([s for s in spans.handled if linked(s)]) == 3
    assert traced.ops.show(msg_id).trace_id == f"{spans.sent[0].context.trace_id:032x}"
