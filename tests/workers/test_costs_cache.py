"""Probed costs are kept, joined and never trusted blindly."""

import os

import pytest

from counterpoise.workers.costs_cache import CostsCache

COST = {"tiles": 2, "tokens": 7}


@pytest.fixture
def path(shard):
    return shard("a.tar", {"a.jpg": b"1"})


def _kept(path):
    return list(path.parent.glob("*.costs-*.npz"))


def test_what_is_put_is_got_and_kept(path):
    costs = CostsCache(path, "f", 3)
    assert costs.get(0) is None
    costs.put(0, COST, 10)
    costs.put(2, {"tiles": 0, "tokens": 1}, None)
    assert costs.get(0) == (COST, 10)
    assert costs.get(1) is None
    costs.save()
    again = CostsCache(path, "f", 3)
    assert [again.get(i) for i in range(3)] == [(COST, 10), None, ({"tiles": 0, "tokens": 1}, None)]


def test_a_full_table_is_saved_by_itself(path):
    costs = CostsCache(path, "f", 2)
    costs.put(0, COST, 1)
    assert not _kept(path)
    costs.put(1, COST, 1)
    assert _kept(path)


def test_two_writers_join_what_they_know(path):
    one, two = CostsCache(path, "f", 3), CostsCache(path, "f", 3)
    one.put(0, COST, 1)
    two.put(2, COST, 3)
    one.save()
    two.save()
    again = CostsCache(path, "f", 3)
    assert [again.get(i) is not None for i in range(3)] == [True, False, True]


def test_another_fingerprint_knows_nothing(path):
    costs = CostsCache(path, "f", 1)
    costs.put(0, COST, 1)
    assert CostsCache(path, "g", 1).get(0) is None


def test_another_state_of_the_shard_knows_nothing(path):
    costs = CostsCache(path, "f", 1)
    costs.put(0, COST, 1)
    os.utime(path, ns=(0, 1))
    assert CostsCache(path, "f", 1).get(0) is None


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"\x80\x04junk"])
def test_a_damaged_file_is_ignored_and_written_again(path, damage):
    costs = CostsCache(path, "f", 1)
    costs.put(0, COST, 1)
    _kept(path)[0].write_bytes(damage)
    fresh = CostsCache(path, "f", 1)
    assert fresh.get(0) is None
    fresh.put(0, COST, 1)
    assert CostsCache(path, "f", 1).get(0) == (COST, 1)


def test_costs_of_another_kind_are_not_mixed_in(path):
    costs = CostsCache(path, "f", 2)
    costs.put(0, COST, 1)
    costs.put(1, {"seconds": 3}, 1)
    assert costs.get(1) is None
