"""The real samples, repacked as JSON with images beside it, are those of the shards."""

import numpy as np
import pytest

import counterpoise as cp
from tests.workers.jsonl.repacked import FORMS

pytestmark = pytest.mark.slow
TRANSFORM = cp.workers.VisionLanguage(tile_size=28, tokens_per_tile=16)


@pytest.fixture(scope="module")
def shards(data, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return cp.TarDataset(str(data / "shards" / "*.tar"), TRANSFORM, cache=cache)


@pytest.fixture(scope="module", params=["lines", pytest.param("openai", marks=pytest.mark.long),
                                        pytest.param("array", marks=pytest.mark.long)])  # fmt: skip
def source(request, shards, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return cp.JsonlDataset(FORMS[request.param](shards, folder), TRANSFORM)


def test_keys_costs_pixels_and_ids_are_those_of_the_shards(source, shards):
    assert [source.key(n) for n in range(len(source))] == [shards.key(n) for n in range(1336)]
    for index in range(0, len(shards), 5):
        assert source.probe(index) == shards.probe(index)
    for index in range(0, len(shards), 37):
        ours, theirs = source[index], shards[index]
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
