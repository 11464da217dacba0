"""`web`: the dashboard and the JSON API."""

from __future__ import annotations

import os
from typing import Any

import click

from msgworker import App, db
from msgworker.app import origins_of, settings_of
from msgworker.cli.config import shown
from msgworker.cli.options import (
    FLAGS,
    app_from,
    app_option,
    app_ref_of,
    common,
    configure,
    flags,
    import_app,
)
from msgworker.config import SETTINGS, Configuration
from msgworker.logs import Said, logger

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
@app_option
@flags(*FLAGS)
@common
@click.pass_context
def web(ctx: click.Context, /, **given: Any) -> int:
    """Serve the dashboard and the JSON API until a signal arrives.

    By default it answers on this machine only, and changes nothing. Tokens come from
    --token-file or MSGWORKER_WEB_TOKEN, never from the command line.
    """
    ref = app_ref_of(given)
    conf = configure(ctx, given, level="info")
    app = app_from(conf, ctx) if ref is None else import_app(ref, ctx, conf)
    from msgworker.web import need

    need("uvicorn")
    from msgworker.web import serving

    dashboard = serving.dashboard_for(app, conf.values, os.environ, _values(ctx, app, ref, conf))
    listener = serving.listening(conf["web_host"], conf["web_port"])
    place = serving.address(listener, conf["web_root_path"])
    log.info("the dashboard is at %s", place, extra={"event": Said.WEB_STARTED})
    serving.serve(dashboard, listener)
    return 0


def _values(
    ctx: click.Context, app: App, ref: str | None, conf: Configuration
) -> list[tuple[str, Any, str]]:
    """Each setting with its origin, as `config` lists it; an App that was imported has its own."""
    own = {} if ref is None else settings_of(app)
    origins = conf.origins | ({} if ref is None else origins_of(app, ref))
    rows: list[tuple[str, Any, str]] = [("url", db.masked(app.engine.url), origins["url"])]
    for name in SETTINGS:
        if name != "url":
            value = own[name] if name in own else shown(conf, name, ctx)
            rows.append((name, value, origins[name]))
    return rows
