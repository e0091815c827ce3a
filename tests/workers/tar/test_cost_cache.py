"""Probed costs are kept, joined and never trusted blindly."""

import errno
import fcntl
import multiprocessing

import pytest

from counterpoise.workers.sources import cache_files
from counterpoise.workers.sources.cache_files import identity
from counterpoise.workers.sources.cost_cache import CostsCache

COST = {"tiles": 2, "tokens": 7}


def opened(path, fingerprint, count, cache=None):
    return CostsCache(path, identity(path), fingerprint, count, cache)


@pytest.fixture
def path(shard):
    return shard("a.tar", {"a.jpg": b"1"})


def _known(path, count=3, fingerprint="f"):
    costs = opened(path, fingerprint, count)
    return [costs.get(index) for index in range(count)]


def test_what_is_put_is_got_and_kept_at_once(path):
    costs = opened(path, "f", 3)
    assert costs.get(0) is None
    costs.put(0, COST, 10)
    assert costs.get(0) == (COST, 10)
    assert _known(path) == [(COST, 10), None, None]
    costs.put(2, {"tiles": 0, "tokens": 1}, None)
    assert _known(path) == [(COST, 10), None, ({"tiles": 0, "tokens": 1}, None)]


def test_two_writers_join_what_they_know(path):
    one, two = opened(path, "f", 3), opened(path, "f", 3)
    one.put(0, COST, 1)
    two.put(2, COST, 3)
    one.put(1, COST, 2)
    assert _known(path) == [(COST, 1), (COST, 2), (COST, 3)]
    assert [one.get(index) for index in range(3)] == [two.get(index) for index in range(3)]


def _put_some(path, first):
    costs = opened(path, "f", 400)
    for index in range(first, 400, 4):
        costs.put(index, {"tiles": index, "tokens": first}, index)


def test_processes_that_write_at_once_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_some, args=(path, first)) for first in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert _known(path, 400) == [({"tiles": i, "tokens": i % 4}, i) for i in range(400)]


def test_a_folder_that_cannot_be_locked_is_written_to(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EBADF, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    opened(path, "f", 3).put(1, COST, 1)
    assert _known(path) == [None, (COST, 1), None]


def test_another_fingerprint_knows_nothing(path):
    opened(path, "f", 1).put(0, COST, 1)
    assert _known(path, 1, "g") == [None]


def test_many_rows_are_written_a_few_times(path, monkeypatch):
    sizes, replace = [], cache_files.replace_file

    def counted(path, data):
        sizes.append(len(data))
        return replace(path, data)

    monkeypatch.setattr(cache_files, "replace_file", counted)
    costs = opened(path, "f", 5000)
    for index in range(5000):
        costs.put(index, COST, index)
    costs.keep()
    assert len(sizes) < 80
    assert sum(sizes) < 12 * sizes[-1]
    assert _known(path, 5000) == [(COST, index) for index in range(5000)]
    costs.keep()
    assert sizes[-1] != sizes[-2]


def _put_until_told(path, pipe):
    costs = opened(path, "f", 1000)
    for index in range(500):
        costs.put(index, COST, index)
    pipe.send(index)
    pipe.recv()  # waits to be killed


def test_a_killed_process_loses_an_eighth_at_most(path):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    writer = context.Process(target=_put_until_told, args=(path, there))
    writer.start()
    assert here.recv() == 499
    writer.kill()
    writer.join()
    known = [row for row in _known(path, 1000) if row is not None]
    assert 500 * 7 // 8 <= len(known) <= 500


def test_costs_of_another_kind_are_not_mixed_in(path):
    costs = opened(path, "f", 2)
    costs.put(0, COST, 1)
    costs.put(1, {"seconds": 3}, 1)
    assert costs.get(1) is None


def test_what_a_full_disk_did_not_take_is_written_later(path, monkeypatch):
    costs = opened(path, "f", 3)
    with monkeypatch.context() as full:
        full.setattr(cache_files, "replace_file", lambda *_: False)
        costs.put(0, COST, 1)
    assert costs.get(0) == (COST, 1)
    assert _known(path) == [None] * 3
    opened(path, "f", 3).put(1, COST, 2)
    costs.put(2, COST, 3)
    assert _known(path) == [(COST, 1), (COST, 2), (COST, 3)]
