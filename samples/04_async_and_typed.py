"""An async handler, and payloads as dataclasses.

Look for: what is sent as a dataclass, with a Decimal and a date, comes back as one; a payload that
does not fit the type is dead at once, with a text that says which field.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path

from msgworker import App, Message


@dataclass
class Invoice:
    number: str
    amount: Decimal
    due: date


async def post(msg: Message[Invoice]) -> None:
    await asyncio.sleep(0.01)
    print(f"invoice {msg.payload.number}: {msg.payload.amount}, due {msg.payload.due:%d %b}")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{Path(folder) / 'crm.db'}")
        app.create_schema()
        app.add_handler("invoice.post", post)

        with app.engine.begin() as conn:
            send = partial(app.send, conn, "invoice.post", object_id="C-1")
            send(Invoice("2026-1", Decimal("19.99"), date(2026, 10, 31)))
            send({"number": "2026-2", "amount": "many", "due": "2026-10-31"})
            send({"number": "2026-3", "amount": "5.00", "due": "2026-10-31"})

        report = app.drain(threads=2, linger=0)
        print(report)
        for message in app.ops.find(status="dead"):
            print(message.last_error)
        app.engine.dispose()
        return 0 if (report.done, report.failed) == (2, 1) else 1


if __name__ == "__main__":
    raise SystemExit(main())
