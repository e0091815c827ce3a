"""The epoch's order is DistributedSampler's, number by number."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from counterpoise.balancer.planning.problem.shuffle import _partners, permutation

SIZES = (0, 1, 2, 3, 17, 1000, 32767, 32768, 32769, 199_999, 200_000, 200_001)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 2**31 + 7, 2**32 + 5, -3])
def test_it_equals_torch_randperm(count: int, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed + 4)
    expected = torch.randperm(count, generator=generator).numpy()
    found = permutation(count, seed, epoch=4)
    assert found.dtype == np.int64
    assert np.array_equal(found, expected)


def test_it_is_what_distributed_sampler_deals() -> None:
    data: Any = range(40)
    samplers = [DistributedSampler(data, 4, rank, seed=3) for rank in range(4)]
    for sampler in samplers:
        sampler.set_epoch(2)
    drawn = np.array([list(sampler) for sampler in samplers]).T.reshape(-1)
    assert np.array_equal(drawn, permutation(40, seed=3, epoch=2))


def test_huge_counts_draw_64_bits_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.balancer.planning.problem.shuffle._WIDE_FROM", 10)
    words = np.random.RandomState(5).randint(0, 2**32, size=18, dtype=np.uint32).tolist()
    expected = [((words[2 * k] << 32) | words[2 * k + 1]) % (10 - k) + k for k in range(9)]
    (partners,) = _partners(10, 5)
    assert partners.tolist() == expected


@pytest.mark.parametrize("count", [1000, 1001, 200_001])
@pytest.mark.parametrize("is_wide", [False, True])
def test_it_is_the_same_in_parts_of_any_size(
    count: int, is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffle = "counterpoise.balancer.planning.problem.shuffle"
    if is_wide:
        monkeypatch.setattr(f"{shuffle}._WIDE_FROM", 10)
    whole = permutation(count, 3, 1)
    for part in (1, 100, 1000) if count < 2000 else (4096, 200_000):
        monkeypatch.setattr(f"{shuffle}._PART", part)
        assert np.array_equal(permutation(count, 3, 1), whole)


def test_without_shuffle_it_is_the_source_order() -> None:
    assert permutation(5, 1, 2, shuffle=False).tolist() == [0, 1, 2, 3, 4]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="zero or more"):
        permutation(-1, 0, 0)


def test_it_does_not_import_torch() -> None:
    code = (
        "import sys; from counterpoise.balancer.planning.problem.shuffle import permutation; "
        "permutation(300_000, 0, 0); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
