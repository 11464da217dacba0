"""What is an old primary of MariaDB, by what servers have of each other; with real ones it is in
proof/failover."""

from __future__ import annotations

from typing import Any

import pytest

from msgworker.db.mysql_servers import Log, Reigns

A, B, C = 1, 2, 3


def log(server: int, *, domain: int = 0, **last: int) -> Log:
    """What a server has; a=7: the last of server A is 7."""
    ids = {"a": A, "b": B, "c": C}
    return Log(server, domain, {ids[name]: number for name, number in last.items()})


def judged(*logs: Log) -> list[str]:
    """Of servers to which connections lead one after the other."""
    past, found = Reigns(), []
    for one in logs:
        if past.is_old(one):
            found.append("old")
        else:
            found.append("newer" if past.sees(one) else "same")
    return found


ON_A = log(A, a=100)
ON_B = log(B, a=100, b=150)


def apart(one: Log) -> Log:
    """The same of MySQL, whose servers count their own."""
    return Log(one.server, one.domain, one.last, apart=True)


APART_A, APART_B = apart(log(A, a=100)), apart(log(B, a=100, b=50))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        pytest.param(log(A, a=120), ["old"], id="the old one, with what it wrote alone"),
        pytest.param(log(A, a=100), ["old"], id="the old one, which wrote nothing more"),
        pytest.param(log(B, a=100, b=60), ["same"], id="the new one"),
        pytest.param(log(A, a=100, b=50), ["newer"], id="back to the old one, in order"),
        pytest.param(log(A, a=160, b=40), ["newer"], id="the same, and an end was lost"),
        pytest.param(log(C, a=100, b=40), ["newer"], id="a third, and an end was lost"),
        pytest.param(log(C, a=100, c=1), ["newer"], id="a third that has nothing of the second"),
    ],
)
def test_who_lacks_the_reign_of_its_heir_is_old_where_each_counts_its_own(
    last: Log, words: list[str]
) -> None:
    assert judged(APART_A, APART_B, apart(last)) == ["same", "newer", *words]


def test_a_second_reign_of_a_server_is_not_its_first_where_each_counts_its_own() -> None:
    again = apart(log(A, a=130, b=50))  # it reigned until 100, then followed, then wrote 30
    old_b = apart(log(B, a=100, b=70))
    assert judged(APART_A, APART_B, apart(log(A, a=100, b=50)), again, old_b)[-2:] == [
        "same",
        "old",
    ]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(log(B, a=100, b=1), id="a replica with a transaction of its set-up"),
        pytest.param(log(B, a=90, b=1), id="one that lacks something"),
        pytest.param(log(B, a=90), id="a standby"),
    ],
)
def test_a_primary_is_not_refused_for_what_another_server_has_where_each_counts_its_own(
    other: Log,
) -> None:
    past = Reigns()
    past.hears(apart(other))
    assert not past.is_old(APART_A)
    past.sees(APART_A)
    past.hears(apart(other))
    assert not past.is_old(APART_A)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        pytest.param(log(A, a=120), ["old"], id="the old one, with what it wrote alone"),
        pytest.param(log(A, a=100), ["old"], id="the old one, which wrote nothing more"),
        pytest.param(log(B, a=100, b=160), ["same"], id="the new one"),
        pytest.param(log(B, b=3), ["same"], id="the new one, whose log was begun anew"),
        pytest.param(log(A, a=100, b=150), ["same"], id="back to the old one, in order"),
        pytest.param(log(A, a=160, b=150), ["newer"], id="back to the old one, which wrote"),
        pytest.param(log(A, a=160, b=140), ["newer"], id="the same, and an end was lost"),
        pytest.param(log(C, a=100, b=140), ["newer"], id="a third, and an end was lost"),
        pytest.param(log(C, a=100), ["newer"], id="a third that has nothing of the second"),
        pytest.param(log(A, domain=7, a=1), ["newer"], id="another database"),
    ],
)
def test_who_lacks_the_whole_reign_of_its_heir_is_old(last: Log, words: list[str]) -> None:
    assert judged(ON_A, ON_B, last) == ["same", "newer", *words]


def test_a_new_primary_is_known_once_it_has_written() -> None:
    past = Reigns()
    past.sees(ON_A)
    assert past.is_settled()
    assert past.sees(log(B, a=100))
    assert not past.is_settled()
    assert not past.is_old(log(A, a=120))  # nothing is lost on it so far
    assert not past.sees(ON_B)
    assert past.is_settled()
    assert past.is_old(log(A, a=120))


def test_an_old_one_stays_old_after_a_third() -> None:
    third = log(C, a=100, b=150, c=170)
    assert judged(ON_A, ON_B, third, log(A, a=120), log(B, a=100, b=160)) == [
        "same",
        "newer",
        "newer",
        "old",
        "old",
    ]


@pytest.mark.parametrize(
    ("heard", "old"),
    [
        pytest.param([ON_B], [A], id="the new one"),
        pytest.param([log(C, a=100, b=140)], [A], id="a replica of it"),
        pytest.param([log(C, a=80), ON_B], [A], id="one that is behind, and the new one"),
        pytest.param([ON_B, log(C, a=80)], [A], id="the same in the other order"),
        pytest.param([log(C, a=80)], [], id="one that is behind"),
        pytest.param([log(C, domain=7, a=900)], [], id="one of another domain"),
        pytest.param([log(A, a=120)], [], id="the old one"),
    ],
)
def test_what_other_servers_say_shows_the_old_one(heard: list[Log], old: list[int]) -> None:
    past = Reigns()
    for one in heard:
        past.hears(one)
    servers = (log(A, a=120), ON_B)
    assert [one.server for one in servers if past.is_old(one)] == old


class Cursor:
    def __init__(self, **variables: Any) -> None:
        self.variables = variables

    def execute(self, query: str) -> None:
        pass

    def fetchall(self) -> list[tuple[str, Any]]:
        return list(self.variables.items())


SAID = {"server_id": "2", "gtid_domain_id": "0", "gtid_slave_pos": "0-1-95,7-9-3"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({**SAID, "gtid_binlog_state": "0-1-90,0-2-96,7-9-4"}, Log(2, 0, {1: 95, 2: 96})),
        ({**SAID, "gtid_binlog_state": "7-9-4", "gtid_slave_pos": ""}, None),
        ({**SAID, "gtid_binlog_state": ""}, None),
        ({**SAID, "gtid_binlog_state": "0-2-96", "wsrep_on": "ON"}, None),
        ({"server_id": "2"}, None),
    ],
)
def test_what_a_server_says(variables: dict[str, str], found: Log | None) -> None:
    past = Reigns()
    assert past.ask(Cursor(**variables)) == found
    assert past.tells is (variables.get("gtid_binlog_state", "").endswith("-4"))
