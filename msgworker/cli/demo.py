"""`demo`: a demonstration that takes a minute."""

from __future__ import annotations

from typing import Any

import click

from msgworker.cli.options import common, configure


@click.command("demo")
@common
@click.pass_context
def demo(ctx: click.Context, /, **given: Any) -> int:
    """Handle real purchases on embedded SQLite: several instances, failures, one killed process."""
    configure(ctx, given)
    from msgworker.demo.run import run

    return run()
