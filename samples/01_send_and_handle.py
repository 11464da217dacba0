"""Produce inside your own transaction, handle, drain.

Look for: the order sent in the rolled back transaction never arrives; each customer's messages
come in the order they were sent.
"""

import tempfile
from pathlib import Path

from msgworker import App, Context, Message


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{Path(folder) / 'crm.db'}")
        app.create_schema()

        @app.handler("customer.greet")
        def greet(msg: Message, ctx: Context) -> None:
            print(f"customer {msg.object_id}: {msg.payload['text']} (try {ctx.attempt})")

        with app.engine.begin() as conn:
            app.send(conn, "customer.greet", {"text": "hello"}, object_id="C-1")
            app.send(conn, "customer.greet", {"text": "welcome back"}, object_id="C-1")
            app.send(conn, "customer.greet", {"text": "hello"}, object_id="C-2")

        with app.engine.connect() as conn:
            app.send(conn, "customer.greet", {"text": "never"}, object_id="C-3")
            conn.rollback()

        report = app.drain(threads=4, linger=0)
        print(report)
        app.engine.dispose()
        return report.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
