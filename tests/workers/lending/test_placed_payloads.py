"""Payloads by their places: each is found, in order, and what lies evenly is found at once."""

import random

import numpy as np
import pytest

from counterpoise.balancer.protocol.messages import Handles
from counterpoise.workers.lending.placed_payloads import PlacedPayloads


def placed(draw: random.Random, size: int | None = None) -> tuple[PlacedPayloads, list[bytes]]:
    """Return payloads at random places, many of them side by side, and their bytes."""
    runs = [memoryview(draw.randbytes(4096)) for _ in range(3)]
    places: list[tuple[int, int, int]] = []
    while len(places) < 40:
        number, start, step = draw.randrange(3), draw.randrange(2048), draw.choice([64, 128, -64])
        for n in range(draw.randrange(1, 9)):
            offset = (start + n * step) % 3968
            places.append((number, offset, size or draw.randrange(1, 65)))
    payloads = [bytes(runs[n][at : at + nbytes]) for n, at, nbytes in places]
    run_of, offsets, lengths = zip(*places, strict=True)
    return PlacedPayloads(runs, Handles((), run_of, offsets, lengths)), payloads


@pytest.mark.parametrize("seed", range(20))
def test_every_payload_is_found_in_its_order(seed: int) -> None:
    found, expected = placed(random.Random(seed))
    assert [bytes(each) for each in found] == expected
    assert len(found) == len(expected)
    assert expected[3] in found
    assert b"elsewhere" not in found


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_all_payloads(seed: int) -> None:
    found, expected = placed(random.Random(seed), size=60)
    assert found.have_size(60)
    assert not found.have_size(61)
    read, stretches = list[bytes](), [*found.stretches()]
    for run, start, step, count in stretches:
        read += [row.tobytes() for row in np.ndarray((count, 60), np.uint8, run, start, (step, 1))]
    assert read == expected
    assert len(stretches) < len(expected) / 2
