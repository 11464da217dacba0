"""`locks`, `partitions` and `deal`: who holds what, and who takes which part of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import click

from msgworker import App, coordination
from msgworker.cli import output
from msgworker.cli.options import Call, as_json, audited, common, flags, on_table, target
from msgworker.cli.rerun import print_act
from msgworker.config import Configuration
from msgworker.coordination.centres import DATABASE, open_centre
from msgworker.counted import plural
from msgworker.db.errors import secrets_of
from msgworker.errors import ConfigError
from msgworker.instance.state import Scope
from msgworker.instance.stop import Signals, StopRequest, beside, end_by


@click.command("locks")
@click.option("--prefix", metavar="TEXT", default="", help="Only names with this prefix.")
@click.option("--release", "name", metavar="NAME", help="Take this lock away from its holder.")
@click.option("--force", is_flag=True, help="With --release: even if its lease is live.")
@audited
@flags("locks")
@on_table
def locks(call: Call, prefix: str, name: str | None, force: bool) -> None:
    """List locks: holder, token, since when and for how long.

    With --release NAME: free a lock at once. Its holder notices at its next renewal.
    """
    if name is None and (force or any(call.how.values())):
        raise output.Usage("--force, --dry-run, --actor and --reason go with --release NAME")
    if name is not None and prefix:
        raise output.Usage("give --prefix or --release, not both")
    keep_secrets(call)
    conf = call.conf
    if name is None and conf.locks != DATABASE and call.app_ref is None:
        centre = open_centre(conf.locks, None)
    else:
        centre = open_centre(conf.locks, call.app.engine, schema=call.app.table.schema)
    with closing(centre):
        if name is None:
            output.print_list(
                centre.held(prefix),
                COLUMNS,
                as_json=call.as_json,
                nothing="no lock is held",
                as_dict=_dict,
            )
            return
        done = call.app.ops.release_lock(name, centre=centre, force=force, **call.how)
    if not done:
        raise output.NothingMatched(
            f"lock {name} is not held" + (" any more" if done.matched else "")
        )
    print_act(done, call.as_json, {"lock": name, "released": True}, f"released {output.safe(name)}")


def _dict(one: coordination.Lease) -> dict[str, Any]:
    return {
        "lock": one.name,
        "owner": one.owner,
        "token": one.token,
        "held_seconds": round(one.age, 3),
        "left_seconds": round(one.ttl, 3),
    }


COLUMNS = (
    output.Column("LOCK", "name", share=2, least=12),
    output.Column("OWNER", "owner", share=2, least=12),
    output.Column("TOKEN", "token", "right"),
    output.Column("HELD", lambda one: output.age(one.age), "right"),
    output.Column("LEFT", lambda one: output.age(one.ttl), "right"),
)


# --- `partitions` and `deal`; and the scope of `run` and `drain`.

KINDS = "everywhere, instance:TYPE, partitions:SHARDS[:GROUP], segments or job:ID"
TICK_SECONDS = 0.2


@contextmanager
def scoped(conf: Configuration, app: App) -> Iterator[Scope | None]:
    """The scope of the configuration, with its locks open; None = everywhere."""
    kind, _, rest = conf["scope"].strip().partition(":")
    place = f"scope ({conf.origins['scope']})"
    if kind == "everywhere" and not rest:
        yield None
    elif kind == "instance":
        yield coordination.Instance(rest)
    elif kind == "job" and rest.isdecimal() and rest.isascii():
        yield coordination.OneJob(int(rest[:20]))
    elif kind == "partitions":
        shards, group = _shards(rest, place, app)
        with _locks(conf, app) as locks:
            yield coordination.Partitions(locks, shards=shards, group=group)
    elif kind == "segments" and not rest:
        if not conf["segments"]:
            raise ConfigError(
                f"{place} needs [scope] segments, the name of each lock and its shards: "
                'segments = {"order:segment:0" = [0, 1], "order:segment:1" = [2, 3]}'
            )
        with _locks(conf, app) as locks:
            yield coordination.Segments(locks, conf["segments"], on_outage=conf["on_outage"])
    else:
        raise ConfigError(f"{place} must be {KINDS}; got {conf['scope']!r:.80}")


def check_scope(conf: Configuration, app: App) -> None:
    """Raise ConfigError for an impossible scope."""
    with scoped(conf, app) as scope:
        (scope or coordination.Everywhere()).check(app.table)


def keep_secrets(call: Call) -> None:
    """Keep the password of the locks out of all output."""
    call.invocation.secrets |= secrets_of(call.conf.locks)


def _shards(text: str, place: str, app: App) -> tuple[int, str]:
    """SHARDS[:GROUP]; by default as many as the table has."""
    shards, _, group = text.partition(":")
    if shards and not (shards.isdecimal() and shards.isascii()):
        raise ConfigError(f"{place}: partitions:SHARDS takes a whole number, got {shards!r:.40}")
    return int(shards[:20]) if shards else app.table.shards, group


def _locks(conf: Configuration, app: App) -> closing[coordination.LockCentre]:
    return closing(open_centre(conf.locks, app.engine, schema=app.table.schema))


@click.command("partitions")
@target
@flags("scope", "locks")
@as_json
@common
def partitions(call: Call) -> None:
    """Show the current (CUR) and the next (REQ) owner of each shard.

    How many, and of which group, --scope partitions:SHARDS[:GROUP] says; by default those of the
    table.
    """
    keep_secrets(call)
    app, conf = call.app, call.conf
    kind, _, rest = conf["scope"].strip().partition(":")
    if kind not in ("partitions", "everywhere"):
        raise output.Usage(f"the scope is {conf['scope']}; give --scope partitions:SHARDS[:GROUP]")
    given = rest if kind == "partitions" else ""
    shards, group = _shards(given, f"scope ({conf.origins['scope']})", app)
    with _locks(conf, app) as locks:
        scope = coordination.Partitions(locks, shards=shards, group=group)
        found = scope.status(app.table)
        members, _ = scope.view(app.table)
    if call.as_json:
        output.print_json([asdict(one) for one in found])
    else:
        columns = (
            output.Column("SHARD", "shard", "right"),
            output.Column("CUR", "cur", share=1),
            output.Column("REQ", "req", share=1),
        )
        output.print_table(columns, found)
        counts = Counter(one.cur for one in found if one.cur)
        lost = len(found) - sum(counts.values())
        moving = sum(one.req is not None and one.cur is not None for one in found)
        free = f"{plural(lost, 'shard')} without an owner"
        output.note(f"{plural(len(members), 'member')}; {free}, {moving} to move")
    if not members:
        raise output.NothingMatched("no instance works with partitions of this table now")


@click.command("deal")
@click.argument("instance_type", metavar="TYPE...", nargs=-1, required=True)
@click.option(
    "--size", default=3, show_default=True, help="How many messages a type gets in a row."
)
@click.option("--once", is_flag=True, help="Deal the existing messages, then end.")
@target
@flags("locks")
@as_json
@common
def deal(call: Call, instance_type: tuple[str, ...], size: int, once: bool) -> None:
    """Deal messages to instance TYPEs, a few at a time, until a signal arrives.

    An object with an unfinished message keeps its type. Messages of an instance that no longer
    exists are dealt again. Only one dealer deals at a time; others stand by.
    """
    keep_secrets(call)
    app = call.app
    with _locks(call.conf, app) as locks:
        dealer = coordination.Dealer(app, list(instance_type), size=size, locks=locks)
        if once:
            count = dealer.deal_once()
            output.print_json({"dealt": count}) if call.as_json else click.echo(
                f"dealt {plural(count, 'message')}"
            )
            return
        asked = StopRequest()
        asked.begun = True
        with Signals(asked):
            work = beside(dealer.run)
            while not wait([work], TICK_SECONDS).done and not asked.in_order:
                pass
            dealer.stop()
            while not wait([work], TICK_SECONDS).done:
                if asked.at_once is not None:
                    end_by(asked.at_once)
            work.result()
