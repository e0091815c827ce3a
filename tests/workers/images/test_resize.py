"""Both resizers make the same picture, wherever torch's runs."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from counterpoise.workers.images.resize import RESIZERS

# Bytes that differ by one everywhere are at 48 dB. Pictures are at 60 and more; pure noise is
# nearer, where a pass cuts off what goes beyond black and white, and Pillow's versions differ in
# which pass comes first.
LEAST_DB, LEAST_DB_OF_NOISE = 55, 40
SIDES = st.integers(1, 90)


def _noise(width, height, seed=0):
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(levels)


def _drawn(width, height):
    return Image.effect_mandelbrot((width, height), (-3, -2.5, 2, 2.5), 100).convert("RGB")


def _tiles(name, image, rows, columns, size):
    out = np.full((rows, columns, 3, size, size), 77, np.uint8)
    RESIZERS[name](image, out)
    return out


def _decibels(found, wanted):
    error = np.mean((found.astype(float) - wanted) ** 2)
    return 10 * np.log10(255**2 / error) if error else np.inf


@pytest.mark.parametrize("size", [(640, 480), (500, 1100), (1003, 997), (31, 17), (1, 80), (90, 1)])
def test_a_picture_is_the_same_by_both(size):
    for grid in ((1, 1), (2, 1), (1, 3)):
        for make, least in ((_drawn, LEAST_DB), (_noise, LEAST_DB_OF_NOISE)):
            found, wanted = (_tiles(name, make(*size), *grid, 96) for name in RESIZERS)
            assert _decibels(found, wanted) >= least


@given(SIDES, SIDES, st.integers(1, 3), st.integers(1, 3), st.integers(1, 40))
def test_noise_of_any_shape_is_nearly_the_same_by_both(width, height, rows, columns, size):
    image = _noise(width, height, seed=width)
    found, wanted = (_tiles(name, image, rows, columns, size) for name in RESIZERS)
    assert np.abs(found.astype(int) - wanted).mean() < 2


def test_a_picture_far_larger_than_its_target_is_averaged_first_by_both():
    image = _drawn(1999, 1403)
    assert _decibels(*(_tiles(name, image, 1, 1, 64) for name in RESIZERS)) >= LEAST_DB


@pytest.mark.parametrize("name", RESIZERS)
def test_each_place_gets_what_it_would_get_alone(name):
    image = _noise(60, 41)
    places = [np.zeros((2, 3, 3, 16, 16), np.uint8), np.zeros((1, 1, 3, 16, 16), np.uint8)]
    RESIZERS[name](image, *places)
    for place in places:
        assert np.array_equal(place, _tiles(name, image, *place.shape[:2], 16))


@pytest.mark.parametrize("name", RESIZERS)
def test_an_image_of_its_target_s_size_is_only_cut(name):
    image = _noise(48, 32)
    tiles = _tiles(name, image, 2, 3, 16)
    whole = tiles.transpose(0, 3, 1, 4, 2).reshape(32, 48, 3)
    assert np.array_equal(whole, np.asarray(image))


def _digest():
    """Return a hash of pictures larger and smaller than their targets, in either direction."""
    state = hashlib.sha256()
    for size in ((300, 200), (200, 300), (61, 900), (40, 30), (701, 699)):
        state.update(_tiles("torch", _noise(*size), 2, 3, 64))
        state.update(_tiles("torch", _noise(*size), 1, 1, 64))
    return state.hexdigest()


# A process of its own: torch chooses its kernels once. Threads are used before the fork, as a
# trainer does, and the child uses one, as workers do.
ELSEWHERE = """
import os, sys, torch
from tests.workers.images.test_resize import _digest
assert torch.backends.cpu.get_cpu_capability() in sys.argv[1:]
torch.set_num_threads(2)
print(_digest(), flush=True)
if os.fork() == 0:
    torch.set_num_threads(1)
    print(_digest(), flush=True)
    os._exit(0)
assert os.wait()[1] == 0
"""


def test_neither_processor_nor_process_nor_threads_change_a_picture():
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "DEFAULT", "NO AVX"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [_digest()] * 2, done.stderr
