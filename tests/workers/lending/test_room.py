"""Arrays that are made where their payload is going to lie."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer.protocol.messages import SampleRef
from counterpoise.workers.codec.frames import decode_packed, encode_packed
from counterpoise.workers.daemon.source_handler import SourceHandler
from counterpoise.workers.lending.borrower import Borrower
from counterpoise.workers.lending.lender import Lender
from counterpoise.workers.lending.room import LEAST_BYTES
from counterpoise.workers.sources.allocation import Allocate
from counterpoise.workers.sources.interface import SampleError

NAME = b"rank-0"
LARGE = 300_000


@pytest.fixture
def lender(tmp_path: Path) -> Iterator[Lender]:
    """Return a lender with room for a few arrays, which is closed after the test."""
    lender = Lender(str(tmp_path), 4 << 20)
    lender.begin()
    yield lender
    lender.close()


@pytest.fixture
def borrower(tmp_path: Path, lender: Lender) -> Iterator[Borrower]:
    """Return a borrower, which is closed after the test."""
    borrower = Borrower(str(tmp_path), NAME)
    yield borrower
    borrower.close()


def address(array: Any) -> int:
    """Return where an array lies."""
    return int(array.__array_interface__["data"][0])


def is_lent(lender: Lender, array: Any) -> bool:
    """Return whether an array lies in lent memory."""
    mappings = [each.mapping for each in lender._memories.values()]
    return any(each.address <= address(array) < each.address + each.size for each in mappings)


def sent(lender: Lender, borrower: Borrower, sample: Any) -> tuple[Any, Any]:
    """Return a sample's handle, and the sample as a rank reads it."""
    header, buffers = encode_packed(sample)
    handle = lender.lend(buffers)
    views = borrower.views([handle])
    assert views is not None
    return handle, decode_packed(header, views[0])


def check(found: Any, sample: Any) -> None:
    """Check that a rank reads what was sent."""
    assert found.keys() == sample.keys()
    for name, array in sample.items():
        assert np.array_equal(found[name], array), name


def test_a_payload_that_begins_with_the_array_is_not_copied(
    lender: Lender, borrower: Borrower
) -> None:
    offsets = []
    for number in range(3):
        pixels = lender.allocator()(LARGE)
        assert is_lent(lender, pixels)
        pixels[:] = number
        sample = {"pixels": pixels.reshape(3, -1), "ids": np.arange(5), "more": np.arange(70)}
        begin = address(pixels)
        handle, found = sent(lender, borrower, sample)
        memory = lender._memories[handle.segment].mapping
        assert memory.address + handle.offset == begin
        check(found, sample)
        offsets.append(handle.offset)
        del found
    # What was reserved for the rest, and not needed, is given back.
    assert offsets == [0, 300_672, 601_344]


OTHERS = {
    "behind another": lambda pixels, _: {"ids": np.arange(5), "pixels": pixels},
    "two parts of it": lambda pixels, _: {"front": pixels[:100_001], "back": pixels[100_001:]},
    "twice": lambda pixels, _: {"pixels": pixels, "again": pixels},
    "not its begin": lambda pixels, _: {"pixels": pixels[64:]},
    "backwards": lambda pixels, _: {"pixels": pixels[::-1]},
    "another array": lambda _, second: {"pixels": second},
    "more than is reserved": lambda pixels, second: {"pixels": pixels, "more": second},
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_payload_is_copied(lender: Lender, borrower: Borrower, name: str) -> None:
    allocate = lender.allocator()
    pixels, second = allocate(LARGE), allocate(LARGE)
    assert is_lent(lender, pixels)
    assert not is_lent(lender, second), "a sample has one array that is lent"
    pixels[:], second[:] = np.arange(LARGE) % 251, 7
    sample = OTHERS[name](pixels, second)
    _, found = sent(lender, borrower, sample)
    check(found, sample)
    assert not np.shares_memory(found[next(iter(sample))], pixels)
    assert len(lender._book) == 1
    del found


def test_an_array_that_is_cut_is_not_copied(lender: Lender, borrower: Borrower) -> None:
    pixels = lender.allocator()(LARGE)
    pixels[:] = 9
    sample = {"pixels": pixels[:90_000], "ids": np.arange(50)}
    handle, found = sent(lender, borrower, sample)
    assert handle.nbytes < 91_000
    check(found, sample)
    del found


def test_room_comes_back_from_samples_that_are_not_lent(lender: Lender, borrower: Borrower) -> None:
    """A sample that fails, one whose job is over, one whose worker has nothing more to do."""
    for give_back in (lender.allocator, lender.free_all, lender.trim):
        for _ in range(50):
            assert is_lent(lender, lender.allocator()(LARGE)), give_back
            give_back()
    handle, found = sent(lender, borrower, {"pixels": np.arange(LARGE)})
    assert handle.offset == 0
    check(found, {"pixels": np.arange(LARGE)})
    del found


def test_there_is_memory_where_none_can_be_lent(lender: Lender) -> None:
    assert not is_lent(lender, lender.allocator()(LEAST_BYTES - 1))
    assert not is_lent(lender, lender.allocator()(5 << 20))
    assert lender.allocator()(0).shape == (0,)
    assert len(lender.allocator()(5 << 20)) == 5 << 20


class Failing:
    """Samples that take memory and fail: at the first attempt, and one always."""

    def __init__(self) -> None:
        self.tries = 0

    def __len__(self) -> int:
        return 3

    def key(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> str:
        return "failing"

    def load(self, index: int, epoch: int, seed: int, allocate: Allocate) -> Any:
        pixels = allocate(LARGE)
        self.tries += 1
        if index == 1:
            raise SampleError("1", "it does not decode")
        if self.tries == 1:
            raise OSError(errno.EIO, "Input/output error")
        pixels[:] = index + epoch + seed
        return {"pixels": pixels}


def test_samples_that_fail_spoil_no_other(lender: Lender, borrower: Borrower) -> None:
    handler = SourceHandler(
        Failing(),  # type: ignore[arg-type]
        ("samples",),
        0,
        local=True,
        sleep=lambda _: None,
        allocator=lender.allocator,
    )
    handler.open("")
    found = []
    for index in (0, 1, 2):
        try:
            made = handler.decode(SampleRef(index, index), 0)
        except SampleError:
            continue
        views = borrower.views([lender.lend(made.buffers)])
        assert views is not None
        found.append(decode_packed(made.header, views[0])["pixels"])
    assert [set(each.tolist()) for each in found] == [{0}, {2}]
    del found, views


def test_an_array_that_is_kept_is_memory_still(lender: Lender) -> None:
    kept = lender.allocator()(LARGE)
    kept[:] = 3
    lender.close()
    assert kept.sum() == 3 * LARGE
