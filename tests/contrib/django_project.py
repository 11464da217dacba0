"""Run by test_django.py in a process of its own, in the project samples/django_crm: prints JSON."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import django

django.setup()

from customers.models import Booking, Invoice  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import IntegrityError, connection, transaction  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import (  # noqa: E402
    setup_databases,
    setup_test_environment,
    teardown_databases,
)

from msgworker import Context, DuplicateMessage, HandlerError, Message, PayloadError  # noqa: E402
from msgworker.contrib.django import app, handler, send, send_many  # noqa: E402
from msgworker.testing import drain  # noqa: E402

told: dict[str, Any] = {}


def post(amount: int) -> Any:
    path, kind = "/customers/C-1/invoices", "application/json"
    return Client().post(path, {"amount": amount}, content_type=kind)


def ids() -> list[int]:
    return [info.msg_id for info in app().ops.find(limit=100)]


def raised(fn: Any) -> str:
    try:
        fn()
    except Exception as error:
        return type(error).__name__
    return ""


def produce() -> None:
    told["posted"] = post(5).json()
    told["refused"] = post(-1).status_code
    told["after_rollback"] = (ids(), Invoice.objects.count())
    with transaction.atomic():
        told["in_atomic"] = send("other", {"text": "5 % of \u00e4"}, object_id="C-2", priority=3)
        told["seen_before_commit"] = len(ids())
        try:
            with transaction.atomic():
                send("other", object_id="C-3")
                raise IntegrityError("of a savepoint")
        except IntegrityError:
            pass
        told["many"] = send_many("other", [(1, "C-4"), ({"n": 2}, "C-5"), (None, None)])
    told["outside"] = send("other", "now", object_id="C-6", delay=60)
    first = send("other", 1, unique_key="k")
    told["again"] = send("other", 1, unique_key="k") == first
    told["duplicate"] = raised(lambda: send("other", 1, unique_key="k", on_duplicate="raise"))
    told["replaced"] = send("other", 2, unique_key="k", on_duplicate="replace") == first
    with transaction.atomic():
        told["bad"] = raised(lambda: send("other", object()))
        send("other", "still sound")
    told["payloads"] = [app().ops.show(i).payload for i in ids()]
    assert issubclass(DuplicateMessage, Exception)
    assert issubclass(PayloadError, Exception)


def handle() -> None:
    @handler("reads", transactional=True)
    def reads(msg: Message, ctx: Context) -> None:
        told["read"] = Invoice.objects.count()

    @handler("writes", transactional=True)
    def writes(msg: Message, ctx: Context) -> None:
        Invoice.objects.create(customer="x", amount=1)

    @handler("dead connection")
    def dead(msg: Message) -> None:
        Invoice.objects.count()
        connection.connection.close()  # as a server does after a while

    @handler("other")
    async def other(msg: Message) -> None:
        told["async"] = told.get("async", 0) + await Invoice.objects.acount()

    @handler("writes in lines", transactional=True)
    def lines(msg: Message, ctx: Context) -> None:
        with connection.cursor() as cursor:
            cursor.execute("\n  -- of a report\n  SELECT 1")
            cursor.execute("""
                /* the first one */
                INSERT
                  INTO customers_invoice (customer, amount) VALUES ('x', 1)""")

    before = Invoice.objects.count()
    for topic in ("reads", "writes", "writes in lines", "dead connection", "dead connection"):
        send(topic)
    report = drain(app())
    told["report"] = [report.done, report.retried, report.failed]
    told["written"] = Invoice.objects.count() - before
    told["why"] = [one.error for one in app().ops.failures()]
    told["booked"] = Booking.objects.count()


def tests() -> None:
    """As `manage.py test` does."""
    setup_test_environment()
    made = setup_databases(verbosity=0, interactive=False)
    app().create_schema()
    send("other")
    told["sent"] = ids()
    with app().worker() as worker:
        worker.start()
        transaction.set_autocommit(False)
        send("other")  # it wakes up the worker of this process, if it can
        transaction.commit()
        transaction.set_autocommit(True)
    teardown_databases(made, verbosity=0)


def jobs() -> None:
    opened, rolled_back = app().job("run"), app().job("rolled back")
    with transaction.atomic():
        send("other", job=opened)
        told["within"] = raised(opened.seal)
    told["after"] = [opened.seal(), opened.seal()]
    with suppress(IntegrityError), transaction.atomic():
        send("other", job=rolled_back)
        raise IntegrityError
    told["rolled_back"] = rolled_back.seal()
    told["counts"] = [app().ops.job(one.job_id).waiting.count for one in (opened, rolled_back)]


def refuse() -> None:
    """Handlers that no App would take are refused at their own line, and leave the others alone."""

    def declare(topic: str | None, fn: Any, **options: Any) -> str:
        try:
            handler(topic, **options)(fn)
        except HandlerError as error:
            return str(error)
        return ""

    async def later(msg: Message) -> None:
        pass

    told["first"] = declare("a", len, on_done="b")
    told["bad"] = [
        declare("a", len),
        declare("b", len, on_done="a"),
        declare("c", later, transactional=True),
        declare("d", len, max_tries=9),
        declare("e", len, timeout=-1),
    ]
    told["sent"] = send("other")
    try:
        app().handler("c", transactional=True)(later)
    except HandlerError as error:
        told["of_the_app"] = str(error)


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    app().create_schema()
    {one.__name__: one for one in (produce, handle, tests, refuse, jobs)}[sys.argv[1]]()
    print(json.dumps(told))
