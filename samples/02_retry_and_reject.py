"""Three tries with back-off, Reject, RetryLater, and a rerun of what is dead.

Look for: message 1 succeeds at its third try; message 2 is dead at once; message 3 comes back
later without a try counted; message 4 fails three times, is repaired by an operator and rerun.
"""

import logging
import tempfile
from pathlib import Path

from tenacity import wait_fixed

from msgworker import App, Context, Message, Reject, RetryLater


def main() -> int:
    logging.getLogger("msgworker").setLevel(logging.ERROR)  # the dead are printed below
    asked: set[int] = set()
    repaired = False
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{Path(folder) / 'crm.db'}")
        app.create_schema()

        @app.handler("invoice.post", wait=wait_fixed(0.2))
        def post(msg: Message, ctx: Context) -> None:
            print(f"message {msg.msg_id}, try {ctx.attempt}: {msg.payload}")
            match msg.payload:
                case "flaky" if ctx.attempt < 3:
                    raise ConnectionError("no answer")
                case "wrong":
                    raise Reject("no such invoice")
                case "early" if msg.msg_id not in asked:
                    asked.add(msg.msg_id)
                    raise RetryLater(after=0.3)
                case "broken" if not repaired:
                    raise KeyError("amount")

        with app.engine.begin() as conn:
            kinds = ["flaky", "wrong", "early", "broken"]
            app.send_many(conn, "invoice.post", [(kind, None) for kind in kinds])

        print(app.drain(threads=2))
        for message in app.ops.find(status="dead"):
            print(f"dead: message {message.msg_id}: {message.last_error}")

        repaired = True
        print("rerun:", app.ops.rerun([4]))
        report = app.drain(threads=2)
        print(report)
        app.engine.dispose()
        return report.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
