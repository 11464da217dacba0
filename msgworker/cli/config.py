"""`config`: each setting, its value, and where it came from."""

from __future__ import annotations

from typing import Any

import click

from msgworker import db
from msgworker.app import origins_of, settings_of
from msgworker.cli.group import Invocation
from msgworker.cli.options import (
    CONFIG_FILE,
    app_option,
    as_json,
    common,
    configure,
    flags,
    import_app,
)
from msgworker.cli.output import Column, print_json, print_table
from msgworker.config import SETTINGS, Configuration, load, setting_text
from msgworker.coordination.centres import check_centre, masked_centre, secrets_of_centre
from msgworker.errors import ConfigError


@click.command("config")
@app_option
@flags(*(n for n, s in SETTINGS.items() if n != "columns" and s.group not in ("log", "web")))
@as_json
@common
@click.pass_context
def config(ctx: click.Context, /, app_ref: str | None, as_json: bool, **given: Any) -> None:
    """List every setting with its value and origin; with an App, the settings it was built with.

    Passwords are masked.
    """
    file = given.get(CONFIG_FILE)
    chosen = {name: v if v != () else None for name, v in given.items() if name in SETTINGS}
    conf = configure(ctx, given)
    origins = conf.origins
    if app_ref is not None:
        app = import_app(app_ref, ctx)
        conf = load(chosen, keywords=settings_of(app), keywords_from=app_ref, file=file)
        origins = conf.origins | origins_of(app, app_ref)
    rows = [(name, shown(conf, name, ctx), origins[name]) for name in SETTINGS]
    if as_json:
        print_json([{"setting": n, "value": v, "origin": o} for n, v, o in rows])
        return
    columns = (
        Column("SETTING"),
        Column("VALUE", share=3, least=12),
        Column("FROM", share=2, least=12),
    )
    print_table(columns, [(name, setting_text(value), origin) for name, value, origin in rows])


def shown(conf: Configuration, name: str, ctx: click.Context) -> Any:
    """A value for display."""
    call = ctx.find_object(Invocation)
    if name == "locks":
        if call is not None:
            call.secrets |= secrets_of_centre(conf.locks)
        try:
            return masked_centre(check_centre(conf.locks))
        except ConfigError as error:
            raise ConfigError(f"locks ({conf.origins['locks']}): {error}") from None
    if name != "url" or conf[name] is None:
        return conf[name]
    if call is not None:
        call.secrets |= db.secrets_of(conf.url)
    try:
        return db.masked(db.parse_url(conf.url))
    except ConfigError as error:
        raise ConfigError(f"url ({conf.origins['url']}): {error}") from None
