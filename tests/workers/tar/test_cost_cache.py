"""Probed costs are kept, joined and never trusted blindly."""

import multiprocessing
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from counterpoise.workers.sources.cache_files import identity
from counterpoise.workers.sources.cost_cache import CostsCache

COST = {"tiles": 2, "tokens": 7}


def opened(path, fingerprint, count, cache=None, every=1):
    return CostsCache(path, identity(path), fingerprint, count, cache, every)


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


def test_a_file_that_another_begins_while_this_one_opens_stays(path, monkeypatch):
    read = CostsCache._read

    def read_first(costs):
        found = read(costs)
        monkeypatch.setattr(CostsCache, "_read", read)
        opened(path, "f", 3).put(0, COST, 1)
        return found

    monkeypatch.setattr(CostsCache, "_read", read_first)
    opened(path, "f", 3)
    assert _known(path) == [(COST, 1), None, None]


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


def test_another_fingerprint_knows_nothing(path):
    opened(path, "f", 1).put(0, COST, 1)
    assert _known(path, 1, "g") == [None]


def test_another_state_of_the_shard_knows_nothing_and_begins_anew(path):
    opened(path, "f", 1).put(0, COST, 1)
    os.utime(path, ns=(0, 1))
    assert _known(path, 1) == [None]
    opened(path, "f", 1).put(0, COST, 2)
    assert _known(path, 1) == [(COST, 2)]


@pytest.mark.parametrize("damage", [b"", b"[]\n", b"{}\n", b"\x80\x04junk", b"[[1,2,3],null]\n"])
def test_a_damaged_file_is_ignored_and_written_again(path, damage):
    costs = opened(path, "f", 1)
    costs.put(0, COST, 1)
    costs.path.write_bytes(damage)
    fresh = opened(path, "f", 1)
    assert fresh.get(0) is None
    fresh.put(0, COST, 1)
    assert _known(path, 1) == [(COST, 1)]


@example(cut=8, level=0)  # eight zero bytes are a row without costs whose checksum is right
@given(cut=st.integers(0, 160), level=st.integers(0, 255))
def test_rows_that_were_not_written_whole_are_left_out_and_mended(tmp_path_factory, cut, level):
    path = tmp_path_factory.mktemp("shard") / "a.tar"
    path.touch()
    costs = opened(path, "f", 4)
    for index in range(4):
        costs.put(index, COST, index)
    good = costs.path.read_bytes()
    start = good.index(b"\n") + 1
    at = start + min(cut, len(good) - start - 1)
    for broken in (good[:at], good[:at] + bytes([level]) + good[at + 1 :]):
        costs.path.write_bytes(broken)
        assert all(known in (None, (COST, i)) for i, known in enumerate(_known(path, 4)))
        again = opened(path, "f", 4)
        for index in range(4):
            again.put(index, COST, index)
        assert _known(path, 4) == [(COST, index) for index in range(4)]


def test_rows_behind_a_torn_one_are_found(path):
    costs = opened(path, "f", 4)
    costs.put(0, COST, 0)
    with costs.path.open("ab") as file:  # a writer that was killed in the middle of a row
        file.write(costs.path.read_bytes()[-41:-9])
    for index in (1, 2, 3):
        costs.put(index, COST, index)
    assert _known(path, 4) == [(COST, index) for index in range(4)]


def test_gathered_rows_are_known_here_and_kept_in_one_write(path, monkeypatch):
    written, write = [], os.write

    def counting(handle, data):
        written.append(len(data))
        return write(handle, data)

    monkeypatch.setattr(os, "write", counting)
    costs = opened(path, "f", 9, every=4)
    for index in range(9):
        costs.put(index, COST, index)
        assert costs.get(index) == (COST, index)
        assert sum(known is not None for known in _known(path, 9)) == (index + 1) // 4 * 4
    costs.keep()
    assert _known(path, 9) == [(COST, index) for index in range(9)]
    assert written == [4 * 40, 40]  # the first four came with the file
    costs.keep()
    assert len(written) == 2


def _put_gathered(path, first):
    costs = opened(path, "f", 400, every=7)
    for index in range(first, 400, 4):
        costs.put(index, {"tiles": index, "tokens": first}, index)
    costs.keep()


def test_processes_that_gather_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_gathered, args=(path, first)) for first in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert _known(path, 400) == [({"tiles": i, "tokens": i % 4}, i) for i in range(400)]


def _put_until_told(path, pipe):
    costs = opened(path, "f", 1000, every=64)
    for index in range(500):
        costs.put(index, COST, index)
    pipe.send(index)
    pipe.recv()  # waits to be killed


def test_a_killed_process_loses_fewer_rows_than_it_gathers(path):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    writer = context.Process(target=_put_until_told, args=(path, there))
    writer.start()
    assert here.recv() == 499
    writer.kill()
    writer.join()
    known = [row for row in _known(path, 1000) if row is not None]
    assert 500 - 64 < len(known) <= 500


def test_costs_of_another_kind_are_not_mixed_in(path):
    costs = opened(path, "f", 2)
    costs.put(0, COST, 1)
    costs.put(1, {"seconds": 3}, 1)
    assert costs.get(1) is None


def test_a_folder_that_cannot_be_written_is_done_without(path, tmp_path):
    (tmp_path / "file").touch()
    costs = opened(path, "f", 1, tmp_path / "file" / "below")
    costs.put(0, COST, 1)
    assert costs.get(0) == (COST, 1)
