"""A batch job that a timer calls: each call handles what is there, a call too many is skipped.

Look for: the second call, made while the first one works, returns at once; the third finds nothing.
"""

import tempfile
import threading
import time
from pathlib import Path

from msgworker import App, Message


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{Path(folder) / 'crm.db'}")
        app.create_schema()

        @app.handler()
        def anything(msg: Message) -> None:
            time.sleep(0.01)

        with app.engine.begin() as conn:
            app.send_many(conn, "nightly", [({"n": n}, f"C-{n % 10}") for n in range(200)])

        def on_timer() -> None:
            print(app.drain(threads=4, time_limit=60, linger=0))

        first = threading.Thread(target=on_timer)
        first.start()
        time.sleep(0.2)
        on_timer()
        first.join()
        on_timer()
        left = [c for c in app.ops.counts() if c.status != "done"]
        app.engine.dispose()
        return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
