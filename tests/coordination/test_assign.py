"""Who is to work on which shard."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgworker.coordination.partitions import requested, round_robin, sticky

QUEUES = [1, 2, 3, 4, 5]
ALL_A = dict.fromkeys(QUEUES, "A")


@pytest.mark.parametrize(
    ("members", "cur", "req"),
    [
        ("A", "A A A A A", "- - - - -"),
        ("AB", "A A A A A", "- B - B -"),
        ("ABC", "A A A A A", "- B C - B"),
        ("ABCD", "A A A A A", "- B C D -"),
        ("ABCD", "A B C D A", "- - - - -"),
    ],
)
def test_round_robin_gives_the_tables_of_the_queue_assignment_to_the_cell(members, cur, req):
    owners = dict(zip(QUEUES, cur.split(), strict=True))
    found = requested(round_robin(list(members), QUEUES, owners), owners)
    assert [found[q] or "-" for q in QUEUES] == req.split()


def test_what_the_members_ask_for_is_what_they_have_after_the_release():
    target = round_robin(list("ABCD"), QUEUES, ALL_A)
    asked = requested(target, ALL_A)
    after = {queue: asked[queue] or ALL_A[queue] for queue in QUEUES}
    assert " ".join(after.values()) == "A B C D A"


def _moves(before, after):
    return sum(before[shard] != after[shard] for shard in before)


def test_sticky_moves_24_of_96_from_three_members_to_four():
    shards = range(96)
    three = sticky(["a", "b", "c"], shards, {})
    four = sticky(["a", "b", "c", "d"], shards, three)
    assert _moves(three, four) == 24
    assert _moves(three, round_robin(["a", "b", "c", "d"], shards, three)) > 24


MEMBERS = st.lists(st.sampled_from("abcdefghijkl"), max_size=12, unique=True)
OWNERS = st.dictionaries(st.integers(0, 40), st.sampled_from("abcdefghijklxyz"), max_size=41)
SIZES = st.integers(1, 40)


@given(MEMBERS, OWNERS, SIZES)
@pytest.mark.parametrize("assign", [sticky, round_robin])
def test_every_shard_has_one_member_and_the_members_differ_by_one(assign, members, owners, size):
    target = assign(members, range(size), owners)
    if not members:
        assert target == {}
        return
    assert list(target) == list(range(size))
    counts = Counter(target.values())
    sizes = [counts[member] for member in members]
    assert sum(sizes) == size
    assert max(sizes) - min(sizes) <= 1


@given(MEMBERS, OWNERS, SIZES)
def test_sticky_is_the_same_in_whatever_order_the_members_are_seen(members, owners, size):
    target = sticky(members, range(size), owners)
    assert sticky(members[::-1], range(size), owners) == target


@given(MEMBERS, OWNERS, SIZES)
def test_sticky_asked_again_of_what_it_gave_moves_nothing(members, owners, size):
    target = sticky(members, range(size), owners)
    assert sticky(members, range(size), target) == target


@given(MEMBERS.filter(bool), OWNERS, SIZES)
def test_sticky_moves_no_more_than_the_balance_needs(members, owners, size):
    owners = {shard: owner for shard, owner in owners.items() if shard < size}
    target = sticky(members, range(size), owners)
    counts = Counter(owner for owner in owners.values() if owner in members)
    least, more = divmod(size, len(members))
    by_size = sorted((counts[member] for member in members), reverse=True)
    could_stay = sum(min(have, least + (place < more)) for place, have in enumerate(by_size))
    stayed = sum(owners.get(shard) == member for shard, member in target.items())
    assert stayed == could_stay


@given(MEMBERS.filter(bool), OWNERS, SIZES, st.data())
def test_a_hand_over_that_is_half_done_disturbs_no_other_shard(members, owners, size, data):
    """A step frees a shard that is to move, or gives a free one to whom it is meant for by then."""
    owners = {shard: owner for shard, owner in owners.items() if shard < size}
    while True:
        target = sticky(members, range(size), owners)
        right = {shard for shard, owner in owners.items() if owner == target[shard]}
        moving = [shard for shard in target if shard not in right]
        if not moving:
            break
        shard = data.draw(st.sampled_from(moving))
        if shard in owners:
            del owners[shard]
        else:
            owners[shard] = target[shard]
        after = sticky(members, range(size), owners)
        assert [s for s in right if after[s] != owners[s]] == []
