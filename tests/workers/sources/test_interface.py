"""What a source offers, and that any map-style dataset becomes one."""

import pickle
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from counterpoise.workers.sources.costs import bad_cost, sample_nbytes
from counterpoise.workers.sources.interface import Probe, SampleError, Source
from counterpoise.workers.sources.plain import PlainSource, as_source

BAD_COSTS = [-1, 1.5, 3.0, "3", None, float("nan"), float("inf"), 2**40 + 1, 2**63, 2**100]
TEXTS = ["a", "bcd", "ef"]


class Whole:
    """A dataset that is a source by itself."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return index

    def key(self, index):
        return f"w{index}"

    def probe(self, index):
        return Probe(self.key(index), {"tokens": index}, 4)

    def load(self, index, epoch, seed):
        return index, epoch, seed

    def fingerprint(self):
        return "f"


class Costing(Whole):
    """A dataset whose probe finds this cost."""

    def __init__(self, value):
        self.value = value

    def probe(self, index):
        return Probe(str(index), {"tokens": self.value}, 4)


class Rolling:
    """A dataset that draws from every global generator."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        torch = sys.modules["torch"]
        return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_an_error_names_the_sample_and_the_reason_and_travels():
    error = pickle.loads(pickle.dumps(SampleError("k1", "no text")))
    assert (error.key, error.reason, str(error)) == ("k1", "no text", "sample 'k1': no text")
    assert isinstance(error, ValueError)


def test_a_source_is_kept_as_it_is():
    source = PlainSource(Whole())
    assert isinstance(source, Source)
    assert as_source(source) is source


def test_what_a_dataset_offers_itself_is_kept():
    source = PlainSource(Whole())
    assert source.key(1) == "w1"
    assert source.probe(1) == Probe("w1", {"tokens": 1}, 4)
    assert source.load(1, epoch=2, seed=3) == (1, 2, 3)
    assert source.fingerprint() == "f"


def test_a_plain_dataset_costs_one_sample_each_and_is_named_by_index():
    source = as_source(TEXTS)
    assert [source.key(i) for i in range(len(source))] == ["0", "1", "2"]
    assert source.probe(2) == Probe("2", {"samples": 1})
    assert source[1] == source.load(1, epoch=0, seed=0) == "bcd"


def test_a_cost_table_is_read_without_loading():
    class Unloadable(list):
        def __getitem__(self, index):
            raise OSError("was loaded")

    source = PlainSource(Unloadable(TEXTS), cost={"tiles": [1, 2, 3], "tokens": np.arange(3)})
    assert source.probe(2).cost == {"tiles": 3, "tokens": 2}
    assert PlainSource(TEXTS, cost=np.array([7, 8, 9])).probe(1).cost == {"cost": 8}
    assert not source.decode_first


def test_a_cost_function_measures_the_loaded_sample():
    source = PlainSource(TEXTS, cost=lambda text: {"tokens": len(text)})
    assert source.decode_first
    assert source.probe(1) == Probe("1", {"tokens": 3}, 3)


def test_a_table_has_a_cost_for_each_sample():
    with pytest.raises(ValueError, match="give 3 of them, one a sample"):
        PlainSource(TEXTS, cost={"tokens": [1, 2]})


@pytest.mark.parametrize("value", BAD_COSTS)
def test_a_bad_cost_is_refused_however_a_source_has_it(value):
    words = re.escape(f"sample '1': {bad_cost('tokens', value)}")
    with pytest.raises(ValueError, match=words):
        PlainSource(TEXTS, cost={"tokens": [1, value, 3]})
    for source in (
        PlainSource(TEXTS, cost=lambda _: {"tokens": value}),
        PlainSource(Costing(value)),
    ):
        with pytest.raises(SampleError, match=words):
            source.probe(1)


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="empty"):
        PlainSource([])


def test_what_is_no_dataset_is_refused():
    with pytest.raises(ValueError, match="map-style"):
        PlainSource(iter(TEXTS))


def test_global_randomness_follows_from_seed_epoch_and_key_alone():
    import torch

    source = PlainSource(Rolling())
    torch.manual_seed(1)
    first = source.load(3, epoch=1, seed=5)
    before = (
        random.getstate(),
        np.random.get_state()[1].tolist(),  # type: ignore[index]
        torch.get_rng_state().tolist(),
    )
    torch.rand(7)
    random.random()
    state = random.getstate()
    assert source.load(3, epoch=1, seed=5) == first
    assert random.getstate() == state != before[0]
    draws = {source.load(i, e, s) for i in (1, 3) for e in (0, 1) for s in (5, 6)}
    assert len(draws) == 8


def test_bytes_of_a_sample_count_arrays_and_text():
    import torch

    sample = {"a": np.zeros((2, 3), np.int32), "t": torch.zeros(5), "s": "é", "l": [b"xy", 1.0]}
    assert sample_nbytes(sample) == 24 + 20 + 2 + 2 + 8


def test_fingerprints_tell_datasets_apart():
    assert as_source(TEXTS).fingerprint() == as_source(list(TEXTS)).fingerprint()
    assert as_source(TEXTS).fingerprint() != as_source(TEXTS[:2]).fingerprint()


def test_sources_are_opened_without_torch():
    names = ("sources.registry", "sources.failures", "tar.dataset", "vision_language")
    code = f"import sys, {', '.join(f'counterpoise.workers.{name}' for name in names)}; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd="/").returncode == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_what_has_no_bytes_of_its_own_is_a_few_and_no_error():
    class Odd:
        def nbytes(self) -> int:
            return 5

    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert sample_nbytes([torch.eye(3).to_sparse(), Odd()]) == 16
    assert sample_nbytes(nested) == 20
    assert sample_nbytes("\ud800") == 3  # half a character, which JSON may hold
