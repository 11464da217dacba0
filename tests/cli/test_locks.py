"""`msgworker locks`: who holds what, and taking it away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from msgworker import App, ConfigError
from msgworker.coordination import DatabaseLocks, LeaseLost, hold
from tests.support.apps import created
from tests.support.waiting import until


@pytest.fixture
def app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    url = f"sqlite:///{folder / 'crm.db'}"
    monkeypatch.setenv("MSGWORKER_URL", url)
    return created(App(url))


@pytest.fixture
def locks(app: App) -> Any:
    made = DatabaseLocks(app.engine)
    yield made
    made.close()


def test_what_is_held_is_listed(cli: Any, app: App, locks: DatabaseLocks) -> None:
    assert cli("locks").stdout == "no lock is held\n"
    lease = locks.acquire("contract:42", "machine:7", 600)
    locks.acquire("dealer", "bad\u202eowner", 600)
    done = cli("locks")
    assert done.exit_code == 0
    assert "contract:42" in done.stdout
    assert "machine:7" in done.stdout
    assert "\u202e" not in done.stdout
    (found,) = json.loads(cli("locks", "--json", "--prefix", "contract:").stdout)
    assert (found["lock"], found["owner"], found["token"]) == (
        "contract:42",
        "machine:7",
        lease.token,
    )
    assert 0 <= found["held_seconds"] < 600
    assert 0 < found["left_seconds"] <= 600


def test_a_lock_of_a_living_holder_is_taken_away_by_force_only(
    cli: Any, app: App, locks: DatabaseLocks
) -> None:
    locks.acquire("dealer", "machine:7", 600)
    done = cli("locks", "--release", "dealer")
    assert done.exit_code == 2
    assert "held by machine:7" in done.stderr
    done = cli("locks", "--release", "dealer", "--force", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "would have released dealer\n")
    assert locks.holder("dealer") is not None
    done = cli("locks", "--release", "dealer", "--force", "--reason", "it hangs", "--actor", "anna")
    assert (done.exit_code, done.stdout) == (0, "released dealer\n")
    assert locks.holder("dealer") is None
    assert cli("locks", "--release", "dealer", "--force").exit_code == 5
    (entry,) = app.ops.audit()
    assert (entry.kind, entry.actor, entry.reason) == ("release-lock", "anna", "it hangs")
    assert "release-lock" in cli("audit").stdout


def test_its_holder_hears_of_it(app: App, locks: DatabaseLocks) -> None:
    told: list[Any] = []
    with pytest.raises(LeaseLost), hold(locks, "x", ttl=0.3, on_lost=told.append):  # noqa: PT012
        with pytest.raises(ConfigError, match="--force"):
            app.ops.release_lock("x")
        assert app.ops.release_lock("x", force=True) == 1
        until(lambda: told, "it is told")
    assert app.ops.release_lock("x", force=True) == 0
    assert app.ops.locks() == []


def test_options_of_the_release_need_a_release(cli: Any, app: App) -> None:
    for options in (["--force"], ["--reason", "x"], ["--dry-run"]):
        assert cli("locks", *options).exit_code == 2
    assert cli("locks", "--release", "x", "--prefix", "y").exit_code == 2


def test_a_centre_that_is_away_is_named_without_its_password(cli: Any, app: App) -> None:
    done = cli("locks", "--locks", "redis://u:hunter2secret@127.0.0.1:1/0")
    assert done.exit_code == 3
    assert "127.0.0.1:1" in done.stderr
    assert "hunter2secret" not in done.stdout + done.stderr
    shown = cli("config", "--locks", "redis://u:p@hunter2/secret@127.0.0.1:1/0").stdout
    assert "redis://***@127.0.0.1:1/0" in shown
    done = cli("config", "--locks", "redis://u:hunter2secret@127.0.0.1:1/0")
    assert "redis://***@127.0.0.1:1/0" in done.stdout
    assert "hunter2secret" not in done.stdout + done.stderr
    done = cli("locks", "--locks", "mysql://u:hunter2secret@h/x")
    assert done.exit_code == 2
    assert "hunter2secret" not in done.stdout + done.stderr


@pytest.mark.xdist_group("redis")
def test_locks_in_redis_are_listed_and_released(cli: Any, app: App, servers: Any) -> None:
    from msgworker.coordination import RedisLocks
    from tests.servers import CannotHave

    try:
        url = servers.url("redis")
    except CannotHave as reason:
        pytest.skip(f"redis is not there: {reason}")
    far = RedisLocks.from_url(url)
    far.acquire("cli:x", "me", 600)
    (found,) = json.loads(cli("locks", "--locks", url, "--prefix", "cli:", "--json").stdout)
    assert found["owner"] == "me"
    assert cli("locks", "--locks", url, "--release", "cli:x", "--force").exit_code == 0
    assert far.holder("cli:x") is None
    far.close()
