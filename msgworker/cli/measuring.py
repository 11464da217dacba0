"""`--metrics-port`: metrics of `run`, of this process or of its children."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from msgworker import App
from msgworker.config import Configuration
from msgworker.logs import Said, logger
from msgworker.metrics.snapshot import Snapshot

Source = Callable[[], Iterable[Snapshot]]
log = logger("msgworker.cli")


def counted(conf: Configuration, app: App, *, for_parent: bool) -> Source:
    """Count in this process, if metrics are served or a parent asks for them."""
    if conf["metrics_port"] is None and not for_parent:
        return lambda: ()
    from msgworker.metrics.counting import Counting

    counting = Counting(app)
    return lambda: (counting.snapshot(),)


@contextmanager
def scraped(conf: Configuration, app: App, source: Source) -> Iterator[None]:
    """Serve metrics while the block runs, if that is asked for. Raises ConfigError."""
    if conf["metrics_port"] is None:
        yield
        return
    from msgworker.metrics.exposition import serving
    from msgworker.metrics.looking import Looking

    looking, host = Looking(app.ops), conf["metrics_host"]
    with serving(lambda: (*source(), looking.snapshot()), host, conf["metrics_port"]) as port:
        shown = f"[{host}]" if ":" in host else host
        extra = {"event": Said.METRICS_STARTED}
        log.info("metrics: http://%s:%d/metrics", shown, port, extra=extra)
        yield
