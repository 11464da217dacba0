"""`demo`: a demonstration that takes a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from msgworker.cli.options import common, configure, flags
from msgworker.cli.output import Usage

if TYPE_CHECKING:
    from msgworker import App

HOST = "127.0.0.1"


@click.command("demo")
@click.option("--web", is_flag=True, help="Then show its table in the dashboard, until Ctrl-C.")
@flags("web_port")
@common
@click.pass_context
def demo(ctx: click.Context, /, web: bool, **given: Any) -> int:
    """Handle real purchases on embedded SQLite: several instances, failures, one killed process."""
    if given["web_port"] is not None and not web:
        raise Usage("--port is the dashboard's: give --web too")
    conf = configure(ctx, given)
    from msgworker.demo.run import run

    return with_dashboard(conf["web_port"]) if web else run()


def with_dashboard(port: int) -> int:
    """Run the demonstration, then serve its dashboard to this machine; who is there may act: the
    table is a toy. Raises ConfigError before the work begins if it could not be served."""
    from msgworker.web import need

    need("uvicorn")
    from msgworker.demo.run import run
    from msgworker.web import serving

    with serving.listening(HOST, port) as listener:
        place = serving.address(listener, None)

        def serve(app: App) -> None:
            click.echo(f"\nThe dashboard is at {place}. Ctrl-C ends it and removes the database.")
            made = app.web(actions=True, label="demo", allowed_hosts=[place.split("/")[2]])
            serving.serve(made, listener)

        return run(serve=serve)
