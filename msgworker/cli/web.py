"""`web`: the dashboard and the JSON API; `config`, which says what it runs with; and `demo`, which
shows its table there."""

from __future__ import annotations

import os
from typing import Any

import click

from msgworker import App
from msgworker.app import origins_of, settings_of, table_from
from msgworker.cli.options import Call, app_option, as_json, common, flags, target
from msgworker.cli.output import Column, Usage, print_list
from msgworker.config import SETTINGS, Configuration, load, setting_text
from msgworker.coordination.centres import check_centre, masked_centre
from msgworker.db.engine import parse_url
from msgworker.db.errors import masked, secrets_of
from msgworker.errors import ConfigError
from msgworker.logs import Said, logger
from msgworker.schedules import configured

log = logger("msgworker.web")


@click.command("web")
@flags("web_host", "web_port", "web_token_file")
@click.option(
    "--allow-actions",
    "web_allow_actions",
    flag_value="true",
    default=None,
    help="Let operators and admins act; else all only look.",
)
@flags(
    "web_role",
    "web_root_path",
    "web_allowed_hosts",
    "web_trusted_proxies",
    "web_trusted_proxy_header",
    "web_role_header",
    "web_redact",
    "web_label",
    "locks",
)
@target
@common
def web(call: Call) -> int:
    """Serve the dashboard and the JSON API until a signal arrives.

    By default it answers on this machine only, and changes nothing. Tokens come from
    --token-file or MSGWORKER_WEB_TOKEN, never from the command line.
    """
    call.log_level = "info"
    app, conf = call.app, call.conf
    call.note_origins()
    from msgworker.web import need

    need("uvicorn")
    from msgworker.web import serving

    dashboard = serving.dashboard_for(app, conf.values, os.environ, values_of(call))
    listener = serving.listening(conf["web_host"], conf["web_port"])
    place = serving.address(listener, conf["web_root_path"])
    log.info("the dashboard is at %s", place, extra={"event": Said.WEB_STARTED})
    serving.serve(dashboard, listener)
    return 0


# --- `config`: each setting, its value, and where it came from.


@click.command("config")
@app_option
@flags(*(n for n, s in SETTINGS.items() if n != "columns" and s.group not in ("log", "web")))
@as_json
@common
def config(call: Call) -> None:
    """List every setting with its value and origin; with an App, the settings it was built with.

    Passwords are masked.
    """
    rows = [{"setting": n, "value": v, "origin": o} for n, v, o in values_of(call)]
    print_list(rows, COLUMNS, as_json=call.as_json, nothing="", as_dict=dict)


COLUMNS = (
    Column("SETTING", lambda row: row["setting"]),
    Column("VALUE", lambda row: setting_text(row["value"]), share=3, least=12),
    Column("FROM", lambda row: row["origin"], share=2, least=12),
)


def values_of(call: Call) -> list[tuple[str, Any, str]]:
    """Each setting, its value for display and its origin; an App that was imported has its own."""
    conf = call.conf
    origins = conf.origins
    configured(conf.schedules)  # what other commands refuse is refused here, too
    if call.app_ref is None:
        table_from(conf)
    else:
        app, ref = call.imported, call.app_ref
        conf = load(call.chosen, keywords=settings_of(app), keywords_from=ref, file=call.file)
        origins = conf.origins | origins_of(app, ref)
    return [(name, display_value(call, conf, name), origins[name]) for name in SETTINGS]


def display_value(call: Call, conf: Configuration, name: str) -> Any:
    if name == "locks":
        call.invocation.secrets |= secrets_of(conf.locks)
        try:
            return masked_centre(check_centre(conf.locks))
        except ConfigError as error:
            raise ConfigError(f"locks ({conf.origins['locks']}): {error}") from None
    if name != "url" or conf[name] is None:
        return conf[name]
    call.invocation.secrets |= secrets_of(conf.url)
    try:
        return masked(parse_url(conf.url))
    except ConfigError as error:
        raise ConfigError(f"url ({conf.origins['url']}): {error}") from None


# --- `demo`: a demonstration that takes a minute, and its dashboard.

HOST = "127.0.0.1"


@click.command("demo")
@click.option("--web", is_flag=True, help="Then show its table in the dashboard, until Ctrl-C.")
@flags("web_port")
@common
def demo(call: Call, web: bool) -> int:
    """Handle real purchases on embedded SQLite: several instances, failures, one killed process."""
    if call.chosen["web_port"] is not None and not web:
        raise Usage("--port is the dashboard's: give --web too")
    _ = call.conf  # the log
    from msgworker.demo.run import run

    return with_dashboard(call) if web else run()


def with_dashboard(call: Call) -> int:
    """Run the demonstration, then serve its dashboard to this machine; who is there may act: the
    table is a toy. Raises ConfigError before the work begins if it could not be served."""
    from msgworker.web import need

    need("uvicorn")
    from msgworker.demo.run import run
    from msgworker.web import serving

    with serving.listening(HOST, call.conf["web_port"]) as listener:
        place = serving.address(listener, None)

        def serve(app: App) -> None:
            call.note("url", str(app.engine.url))
            click.echo(f"\nThe dashboard is at {place}. Ctrl-C ends it and removes the database.")
            made = app.web(actions=True, label="demo", allowed_hosts=[place.split("/")[2]])
            serving.serve(made, listener)

        return run(serve=serve)
