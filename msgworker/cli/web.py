"""`web`: the dashboard and the JSON API."""

from __future__ import annotations

import os
from typing import Any

import click

from msgworker.cli.options import common, configure, flags
from msgworker.cli.target import FLAGS, app_from, app_option, app_ref_of, import_app
from msgworker.logs import logger

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
    "web_redact",
    "web_label",
)
@app_option
@flags(*FLAGS)
@common
@click.pass_context
def web(ctx: click.Context, /, **given: Any) -> int:
    """Serve the dashboard and the JSON API until a signal arrives.

    It answers on this machine only, and changes nothing, unless told otherwise. Tokens come from
    --token-file or MSGWORKER_WEB_TOKEN, never from the command line.
    """
    ref = app_ref_of(given)
    conf = configure(ctx, given, level="info")
    app = app_from(conf, ctx) if ref is None else import_app(ref, ctx, conf)
    from msgworker.web import need

    need("starlette", "jinja2", "uvicorn")
    from msgworker.web import serving

    dashboard = serving.dashboard_for(app, conf.values, os.environ)
    listener = serving.listening(conf["web_host"], conf["web_port"])
    log.info("the dashboard is at %s", serving.address(listener, conf["web_root_path"]))
    serving.serve(dashboard, listener)
    return 0
