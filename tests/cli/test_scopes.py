"""Scopes on the command line and in files."""

from __future__ import annotations

import json

import pytest

from tests.support.programs import fill

SCOPE = """
url = "sqlite:///crm.db"
[scope]
kind = "segments"
segments = {"s:0" = [0, 1], "s:1" = [2, 3]}
on_outage = "unscoped"
"""


@pytest.fixture
def sent(app):
    """Six messages in crm.db."""
    fill(app, 6)


@pytest.mark.parametrize(
    "scope", ["everywhere", "partitions:8", "partitions:8:north", "partitions"]
)
def test_a_drain_with_a_scope_does_what_is_there(cli, sent, scope):
    done = cli("drain", "crm:app", "--scope", scope, "--linger", "0", "--json", "--quiet")
    assert json.loads(done.stdout)["done"] == 6


def test_a_scope_may_stand_in_a_table_of_the_file(cli, sent, folder):
    (folder / "msgworker.toml").write_text(SCOPE)
    done = cli("drain", "crm:app", "--linger", "0", "--json", "--quiet")
    assert json.loads(done.stdout)["done"] == 6
    shown = {one["setting"]: one["value"] for one in json.loads(cli("config", "--json").stdout)}
    assert (shown["scope"], shown["on_outage"]) == ("segments", "unscoped")
    assert shown["segments"] == {"s:0": [0, 1], "s:1": [2, 3]}
    (folder / "msgworker.toml").write_text('[scope]\nkinds = "x"\n')
    assert "did you mean kind?" in cli("config").stderr


@pytest.mark.parametrize(
    ("scope", "says"),
    [
        ("instances:asA", "must be everywhere, instance:TYPE"),
        ("instance:", "must be a text"),
        ("partitions:x", "takes a whole number"),
        ("partitions:0", "shards"),
        ("segments", "needs [scope] segments"),
    ],
)
def test_a_scope_that_cannot_be_is_refused_before_anything_is_done(crm, scope, says):
    done = crm("drain", "crm:app", "--scope", scope)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.parametrize("given", ["[" * 3_000, "{", "[1]"])
def test_segments_of_the_environment_that_cannot_be_read_are_a_wrong_setting(
    crm, monkeypatch, given
):
    monkeypatch.setenv("MSGWORKER_SEGMENTS", given)
    done = crm("status", "crm:app")
    assert done.exit_code == 2
    assert "MSGWORKER_SEGMENTS must" in done.stderr


def test_deal_gives_flags_and_an_instance_drains_its_own(cli, sent):
    dealt = cli("deal", "asA", "asB", "--size", "3", "--once", "--app", "crm:app")
    assert dealt.stdout == "dealt 6 messages\n"
    for flag in ("asA", "asB"):
        arguments = ("--scope", f"instance:{flag}", "--linger", "0", "--json", "--quiet")
        done = cli("drain", "crm:app", *arguments)
        assert json.loads(done.stdout)["done"] == 3


def test_partitions_shows_who_has_each_shard_and_who_is_to_have_it(cli, crm):
    from msgworker.coordination import DatabaseLocks

    empty = cli("partitions", "--app", "crm:app", "--scope", "partitions:2")
    assert empty.exit_code == 5
    locks = DatabaseLocks("sqlite:///crm.db")
    for member in ("a", "b"):
        locks.acquire(f"msgworker_message:member:{member}", member, 30)
    for shard in range(2):
        locks.acquire(f"msgworker_message:shard:{shard}", "a", 30)
    shown = cli("partitions", "--app", "crm:app", "--scope", "partitions:2", "--json")
    assert json.loads(shown.stdout) == [
        {"shard": 0, "cur": "a", "req": None},
        {"shard": 1, "cur": "a", "req": "b"},
    ]
    table = cli("partitions", "--app", "crm:app", "--scope", "partitions:2")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["SHARD", "CUR", "REQ"],
        ["0", "a", "-"],
        ["1", "a", "b"],
    ]
    other = cli("partitions", "--app", "crm:app", "--scope", "partitions:2:north")
    assert other.exit_code == 5  # a fleet of another name
    locks.close()
