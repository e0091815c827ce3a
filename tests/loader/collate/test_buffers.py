"""A buffer is used again exactly when nothing lies on it any more."""

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.loader.collate.buffers import BufferPool, rounded


def address(array):
    return array.ctypes.data


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@given(st.integers(0, 1 << 34))
def test_there_is_room_for_less_than_twice_as_much(nbytes):
    size = rounded(nbytes)
    assert nbytes <= size < max(2 * nbytes, 65)
    assert size % 64 == 0
    assert rounded(size) == size


def test_room_that_nothing_is_written_to_takes_no_memory():
    pool, before = BufferPool(), resident_bytes()
    buffer = pool.take((64 << 20) + 1)
    buffer[: 1 << 20] = 1
    assert pool.kept_bytes == 0
    assert resident_bytes() - before < 16 << 20  # of 128: pages may be as large as 2 MB
    del buffer
    assert pool.kept_bytes == 128 << 20


def test_batches_of_different_sizes_use_one_buffer():
    pool, places = BufferPool(), set()
    for nbytes in (33_000, 65_000, 40_000, 65_536):
        buffer = pool.take(nbytes)
        places.add(address(buffer))
        del buffer
    assert len(places) == 1


def test_the_buffer_that_came_back_last_is_taken_first():
    pool = BufferPool()
    first, last = pool.take(8000), pool.take(8000)
    where = address(last)
    del first
    del last
    assert address(pool.take(8000)) == where


@given(st.integers(0, 100_000))
def test_buffers_are_aligned_and_writable(nbytes):
    buffer = BufferPool().take(nbytes)
    assert buffer.nbytes == nbytes
    assert address(buffer) % 64 == 0
    buffer[:] = 7


def test_a_buffer_that_is_dropped_is_used_again():
    pool = BufferPool()
    first = pool.take(8000)
    where = address(first)
    del first
    assert address(pool.take(8080)) == where


@pytest.mark.parametrize(
    "keep",
    [
        lambda buffer: buffer[100:200],
        lambda buffer: buffer.view(np.float32).reshape(10, 200)[3],
        lambda buffer: memoryview(buffer)[8:],
        lambda buffer: torch.from_numpy(buffer)[5:],
        lambda buffer: torch.frombuffer(buffer, dtype=torch.int32).view(5, 400)[:, 2],
        lambda buffer: torch.from_numpy(np.frombuffer(buffer, np.int64).reshape(5, 200)),
        lambda buffer: torch.from_numpy(buffer).untyped_storage(),
    ],
)
def test_whatever_lies_on_a_buffer_keeps_it(keep):
    pool = BufferPool()
    buffer = pool.take(8000)
    where = address(buffer)
    kept = keep(buffer)
    del buffer
    gc.collect()
    assert address(pool.take(8000)) != where
    assert pool.kept_bytes <= 8192
    del kept
    gc.collect()
    assert where in {address(buffer) for buffer in [pool.take(8000), pool.take(8000)]}


@given(st.lists(st.tuples(st.integers(1, 20_000), st.booleans()), max_size=60))
def test_buffers_in_use_never_overlap(takes):
    pool, held = BufferPool(), []
    for number, (nbytes, keep) in enumerate(takes):
        buffer = pool.take(nbytes)
        buffer[:] = number % 251
        if keep:
            held.append((number % 251, buffer))
        elif held:
            held.pop(0)
        assert all((buffer == value).all() for value, buffer in held)


def test_no_more_is_kept_than_was_allowed():
    pool = BufferPool(keep_bytes=10_000)
    buffers = [pool.take(4096) for _ in range(8)]
    buffers.append(pool.take(20_000))
    del buffers
    gc.collect()
    assert pool.kept_bytes <= 10_000


def test_a_pool_may_go_before_its_buffers():
    buffer = BufferPool().take(100)
    gc.collect()
    buffer[:] = 1
    assert buffer.sum() == 100


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="-1 bytes"):
        BufferPool().take(-1)
    with pytest.raises(ValueError, match="keep_bytes is -1"):
        BufferPool(-1)
