"""Mappings of memory files: unmapped with their object."""

import os
from collections.abc import Iterator

import pytest

from counterpoise.workers.arena.memory import PAGE, Mapping, make_memory
from tests.faults.leftovers import memory_of

NBYTES = 1 << 20


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = make_memory(NBYTES)
    yield made
    os.close(made)


def inode_is_mapped(descriptor: int) -> bool:
    """Whether this process has a file mapped; its descriptor is one of those that are found."""
    return memory_of("self").count(os.fstat(descriptor).st_ino) > 1


def test_a_file_is_mapped_as_long_as_its_mapping_lives(descriptor: int) -> None:
    mapping = Mapping(descriptor, NBYTES)
    assert inode_is_mapped(descriptor)
    del mapping
    assert not inode_is_mapped(descriptor)


def test_what_cannot_be_mapped_is_an_error() -> None:
    with pytest.raises(OSError, match=f"cannot map {PAGE} bytes"):
        Mapping(-1, PAGE)
