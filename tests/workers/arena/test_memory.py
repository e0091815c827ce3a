"""Mappings of memory files: unmapped with their object, whatever happens while it is made."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from counterpoise.workers.arena.memory import PAGE, Mapping, make_memory
from tests.faults.leftovers import memory_of
from tests.loader.alarms import Interrupted
from tests.workers.signals.raising import raising_handler

# To map so much, with all its pages, takes far longer than AFTER_S.
NBYTES = 64 << 20
AFTER_S = 0.002


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = make_memory(NBYTES)
    yield made
    os.close(made)


def inode_is_mapped(descriptor: int) -> bool:
    """Whether this process has a file mapped; its descriptor is one of those that are found."""
    return memory_of("self").count(os.fstat(descriptor).st_ino) > 1


def map_until_interrupted(descriptor: int) -> None:
    kept = []  # what a handler raises while one is deleted would be lost
    signal.setitimer(signal.ITIMER_REAL, AFTER_S)
    while True:
        kept.append(Mapping(descriptor, NBYTES))


def test_a_file_is_mapped_as_long_as_its_mapping_lives(descriptor: int) -> None:
    mapping = Mapping(descriptor, NBYTES)
    assert inode_is_mapped(descriptor)
    del mapping
    assert not inode_is_mapped(descriptor)


def test_an_exception_of_a_signal_while_a_file_is_mapped_leaves_nothing(descriptor: int) -> None:
    with raising_handler(signal.SIGALRM), pytest.raises(Interrupted):
        map_until_interrupted(descriptor)
    gc.collect()
    assert not inode_is_mapped(descriptor)


def test_what_cannot_be_mapped_is_an_error() -> None:
    with pytest.raises(OSError, match=f"cannot map {PAGE} bytes"):
        Mapping(-1, PAGE)
