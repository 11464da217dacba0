"""An async handler, and payloads as dataclasses.

Look for: a payload that does not fit the type is dead at once, with a text that says which field.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from msgworker import App, Message


@dataclass
class Invoice:
    number: str
    cents: int


async def post(msg: Message[Invoice]) -> None:
    await asyncio.sleep(0.01)
    print(f"invoice {msg.payload.number}: {msg.payload.cents / 100:.2f}")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{Path(folder) / 'crm.db'}")
        app.create_schema()
        app.add_handler("invoice.post", post)

        with app.engine.begin() as conn:
            app.send(conn, "invoice.post", {"number": "2026-1", "cents": 1999}, object_id="C-1")
            app.send(conn, "invoice.post", {"number": "2026-2", "cents": "many"}, object_id="C-1")
            app.send(conn, "invoice.post", {"number": "2026-3", "cents": 500}, object_id="C-1")

        report = app.drain(threads=2, linger=0)
        print(report)
        for message in app.ops.find(status="dead"):
            print(message.last_error)
        app.engine.dispose()
        return 0 if (report.done, report.failed) == (2, 1) else 1


if __name__ == "__main__":
    raise SystemExit(main())
