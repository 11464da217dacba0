"""`run` and `drain`: an instance until it is stopped, or until nothing is left."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from msgworker import App, Report, Worker
from msgworker.app import columns_of, settings_of, table_from
from msgworker.cli.locks import check_scope, keep_secrets, scoped
from msgworker.cli.logs import StatusLine
from msgworker.cli.options import Call, app_option, as_json, common, flags, options
from msgworker.cli.output import Usage, print_json
from msgworker.cli.processes import Fleet, Parent
from msgworker.config import SETTINGS, Configuration, flag_of, id_of
from msgworker.db.engine import same_database
from msgworker.errors import ConfigError
from msgworker.instance.counting import left_soon
from msgworker.instance.stop import Signals, StopRequest
from msgworker.instance.worker import complaints
from msgworker.logs import Said, logger
from msgworker.metrics import need
from msgworker.metrics.counting import Counting, Source, known_of, packed, summed

# --- `--metrics-port` of `run` and `--metrics-file` of `drain`: metrics of this process or of its
# children.

log = logger("msgworker.cli")


def counting_source(app: App, *, wanted: bool) -> Source:
    """Count in this process, if metrics are served or written, or a parent asks for them."""
    if not wanted:
        return lambda: ()
    counting = Counting(app, partial(known_of, app))
    return lambda: (counting.snapshot(),)


@contextmanager
def scraped(
    conf: Configuration, app: App, source: Source, parent: Parent | None = None
) -> Iterator[None]:
    """Serve metrics while the block runs, if that is asked for; a child leaves it to its parent.
    Raises ConfigError."""
    if conf["metrics_port"] is None or parent is not None:
        yield
        return
    from msgworker.metrics.exposition import serving

    host = conf["metrics_host"]
    with serving(_with_table(app, source), host, conf["metrics_port"]) as port:
        shown = f"[{host}]" if ":" in host else host
        extra = {"event": Said.METRICS_STARTED}
        log.info("metrics: http://%s:%d/metrics", shown, port, extra=extra)
        yield


@contextmanager
def metrics_written(
    conf: Configuration, app: App, source: Source, parent: Parent | None = None
) -> Iterator[None]:
    """Write metrics to a file at the end of the block, however it ends, if that is asked for.
    Raises ConfigError before the block; what fails behind it is logged."""
    path = conf["metrics_file"]
    if path is None or parent is not None:
        yield
        return
    need()
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise ConfigError(f"metrics cannot be written to {path}: it is a folder; name a file in it")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"metrics cannot be written to {path}: {folder} is no folder to write to")
    try:
        yield
    finally:
        from msgworker.metrics.exposition import write

        try:
            write(_with_table(app, source), path)
        except ConfigError as error:
            log.error("%s", error)


def _with_table(app: App, source: Source) -> Source:
    """Beside the counts of processes, what is asked of the database."""
    from msgworker.metrics.exposition import Looking

    looking = Looking(app.ops, partial(known_of, app))
    return lambda: (*source(), looking.snapshot())


# --- `run` and `drain`, in one process or several.

TICK_SECONDS = 0.2
METRICS_EVERY = 5
OF_PARENT = ("processes", "metrics_port", "metrics_host", "metrics_file")
"""Settings that have a flag and are not those of the children of `--processes`."""
OF_SCOPE = ("scope", "locks")


working = options(
    app_option,
    click.option("--report-metrics", is_flag=True, hidden=True, help="Set by the parent process."),
    flags("scope", "locks"),
    flags("threads", "processes", "topics", "time_limit", "grace"),
    click.option("--quiet", is_flag=True, help="No progress, and only warnings in the log."),
    click.option("--report-fd", type=int, hidden=True, help="Set by the parent process."),
)
"""The options of `run` and `drain`."""


@click.command("run")
@working
@flags("metrics_port", "metrics_host")
@common
def run(call: Call, quiet: bool, report_fd: int | None, report_metrics: bool) -> int:
    """Handle messages until a signal arrives.

    SIGTERM, SIGINT, SIGHUP and SIGQUIT stop in order: running handlers may end within --grace,
    messages that have not started are released. Another signal, 2 s later or more, stops at once;
    running messages are then recovered by another instance.
    """
    parent = _parent(call, report_fd)
    app, conf = _checked_app(call, quiet), call.conf
    if conf["processes"] > 1:
        fleet = _fleet("run", call, quiet)
        with scraped(conf, app, fleet.metrics):
            return fleet.run()
    counting = counting_source(app, wanted=report_metrics or conf["metrics_port"] is not None)
    with scoped(conf, app) as scope, scraped(conf, app, counting, parent):
        worker = app.worker(threads=conf["threads"], topics=conf["topics"] or None, scope=scope)
        with _watched(worker, quiet, parent, counting if report_metrics else None):
            worker.run(grace=conf["grace"], time_limit=conf["time_limit"])
    return 0


@click.command("drain")
@working
@flags("linger", "retry_linger", "outage_limit", "metrics_file")
@click.option("--job", metavar="ID", help="Only the messages of this job.")
@as_json
@common
def drain(
    call: Call, quiet: bool, report_fd: int | None, report_metrics: bool, job: str | None
) -> int:
    """Handle messages until none is due now or soon; print what was done.

    Ends with 0 if all went well, 1 if messages became dead or are left that no instance will
    handle, or the job waits for dead ones, 3 if the database was lost, 6 if messages wait for their
    retry, for a limit, for others that are not of the job, or for the lease of a silent instance to
    end: run again.
    """
    if job is not None:
        if call.chosen["scope"] is not None:
            raise Usage("--job and --scope exclude each other")
        call.chosen["scope"] = f"job:{id_of(job)}"
    parent = _parent(call, report_fd, text=not call.as_json)
    app, conf = _checked_app(call, quiet), call.conf
    if conf["processes"] > 1:
        fleet = _fleet("drain", call, quiet)
        with metrics_written(conf, app, fleet.metrics):
            report, code = fleet.drain()
            if not report.database_lost:  # each process counted what was left at its own end
                report = _leaving(app, conf, report)
    else:
        counting = counting_source(app, wanted=report_metrics or conf["metrics_file"] is not None)
        with metrics_written(conf, app, counting, parent):
            told = counting if report_metrics else None
            report, code = _drain_here(app, conf, quiet, parent, told), 0
    if parent is not None:
        parent.send(report=asdict(report))
    elif call.as_json:
        print_json(asdict(report) | {"exit_code": code or report.exit_code})
    else:
        click.echo(str(report))
    return code or report.exit_code


def _parent(call: Call, report_fd: int | None, *, text: bool = True) -> Parent | None:
    """The parent of this process, if there is one. A failed write to a stream never ends the work.

    text: the output is text for people.
    """
    _ = call.needed_ref
    streams = call.invocation.streams
    if report_fd is None:
        streams.of_work(text=text)
        return None
    parent = Parent(report_fd)
    streams.of_child(lambda line: parent.send(lost=line))
    return parent


def _leaving(app: App, conf: Configuration, report: Report) -> Report:
    """The report of several processes, with the messages left after the last one has ended; where
    they were stopped, these are counted in the time of a stop, or the database counts as lost."""
    with scoped(conf, app) as scope:
        worker = app.worker(threads=1, topics=conf["topics"] or None, scope=scope)
    found = left_soon(worker.left) if report.stopped else worker.left()
    if found is None:
        return replace(report, database_lost=True)
    report = report.leaving(found)
    for line in complaints(report, found):
        log.warning(line, extra={"event": Said.DRAIN_LEFT})
    return report


def _drain_here(
    app: App, conf: Configuration, quiet: bool, parent: Parent | None, metrics: Source | None
) -> Report:
    with scoped(conf, app) as scope:
        worker = app.worker(threads=conf["threads"], topics=conf["topics"] or None, scope=scope)
        worker.counts_left = parent is None
        with _watched(worker, quiet, parent, metrics):
            return worker.drain(
                time_limit=conf["time_limit"],
                linger=conf["linger"],
                # None: the drain decides, which waits for nothing without `linger`
                retry_linger=conf["retry_linger"] if conf.given("retry_linger") else None,
                outage_limit=conf["outage_limit"],
                grace=conf["grace"],
            )


def _checked_app(call: Call, quiet: bool) -> App:
    """The App; its table is checked here, so that a fleet does not fail once per process."""
    call.log_level = "warning" if quiet else "info"
    app, conf = call.app, call.conf
    for name in unused(conf, settings_of(app)):
        text = "%s (%s) is not used: %s sets it in its code"
        log.warning(text, name, conf.origins[name], call.app_ref)
    keep_secrets(call)
    call.note_origins()
    check_scope(conf, app)
    if conf["processes"] > 1:
        app.worker(threads=conf["threads"], topics=conf["topics"] or None)
        app.tables  # noqa: B018
        app.engine.dispose()
    return app


def unused(conf: Configuration, own: dict[str, Any]) -> list[str]:
    """Settings of the configuration that an imported App overrides with another value.

    own: from `settings_of`.
    """
    return [name for name in own if conf.given(name) and not _same(conf, name, own[name])]


def _same(conf: Configuration, name: str, value: Any) -> bool:
    if name == "columns":  # a column may be given its default name
        return bool(columns_of(table_from(conf)) == value)
    if name != "url":
        return bool(conf[name] == value)
    try:
        return same_database(conf.url, value)
    except ConfigError:  # an unset placeholder, for example: the App does not use it
        return False


# ---------------------------------------------------------------- one process


@contextmanager
def _watched(
    worker: Worker, quiet: bool, parent: Parent | None, metrics: Source | None = None
) -> Iterator[None]:
    """Report progress while the block runs: on stderr, or to the parent process, which gets
    `metrics` too. Signals and the parent stop the worker."""
    if gc.get_freeze_count() == 0:  # else the program has done so
        gc.freeze()  # or each full collection would go over all imported modules
    over = threading.Event()
    progress = StatusLine(quiet=quiet)
    worker.stop_requests = asked = StopRequest() if parent is None else parent.asked

    def send_metrics() -> None:
        if metrics is not None and parent is not None:
            parent.send(metrics=packed(summed(metrics())))

    def show_progress() -> None:
        for tick in itertools.count():
            if over.wait(TICK_SECONDS):
                break
            if parent is None:
                progress.show(counts(worker))
                continue
            parent.send(progress=counts(worker))
            if tick % METRICS_EVERY == 0:
                send_metrics()

    reporter = threading.Thread(target=show_progress, name="msgworker-progress", daemon=True)
    with Signals(asked):
        if parent is not None:
            parent.begin()
            parent.send(progress=counts(worker))  # so that the parent knows that we have begun
        reporter.start()
        try:
            yield
        finally:
            over.set()
            reporter.join()
            send_metrics()
            progress.end()


def counts(worker: Worker) -> dict[str, int]:
    """The counts for the status line."""
    tally = worker.tally
    return {"done": tally.done, "retried": tally.retried, "dead": tally.dead}


# ---------------------------------------------------------------- several processes


def _fleet(command: str, call: Call, quiet: bool) -> Fleet:
    arguments = child_arguments(command, call, quiet)
    return Fleet(arguments, call.conf["processes"], progress=StatusLine(quiet=quiet))


def child_arguments(command: str, call: Call, quiet: bool) -> list[str]:
    """The child's command line sets every setting that has a flag, so that all children agree."""
    arguments, conf = [command, call.needed_ref, "--processes", "1"], call.conf
    names = [str(param.name) for param in call.ctx.command.params if param.name in SETTINGS]
    for name in names:
        value = conf[name]
        if name in OF_SCOPE and not conf.origins[name].startswith("option"):
            continue  # a secret: a child reads it from the same place, not from its command line
        if value is None or name in OF_PARENT:
            continue
        if name == "retry_linger" and not conf.given(name):
            continue
        values = value if SETTINGS[name].kind == "texts" else [value]
        for each in values:
            arguments += [f"{flag_of(name)}={each}"]
    if call.file is not None:
        arguments += ["--config", call.file]
    if conf["metrics_port" if command == "run" else "metrics_file"] is not None:
        arguments.append("--report-metrics")
    if quiet:
        arguments.append("--quiet")
    if call.invocation.debug:
        arguments.append("--debug")
    return arguments
