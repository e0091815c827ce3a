"""Without balancing the loader yields what torch's yields: batches, order, errors."""

import random
import traceback
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

from counterpoise.loader import DataLoader
from tests.loader.plain import differential_data as data

pytestmark = pytest.mark.slow

MOST_EVENTS = 200
SAMPLERS = ["none", "shuffle", "random", "replacement", "weighted", "subset", "odd", "stumbling"]
BATCH_SAMPLERS = ["batches", "ragged"]
COLLATES = [None, None, None, data.as_list, data.count_and_first, data.refuse_multiples_of_five]


def draw_configuration(seed):
    """All that makes a loader, as plain values: each loader gets objects of its own from them."""
    rng = random.Random(seed)
    count = rng.choice([0, 1, 2, rng.randint(3, 40), rng.randint(3, 40), rng.randint(3, 40)])
    return {
        "count": count, "kind": rng.choice(sorted(data.KINDS)),
        "broken": rng.randrange(max(count, 1)) if rng.random() < 0.15 else -1,
        "sampler": rng.choice(SAMPLERS + BATCH_SAMPLERS),
        "batch_size": rng.choice([None, 1, 2, 3, 4, 5, 7]), "drop_last": rng.random() < 0.3,
        "collate": rng.randrange(len(COLLATES)), "seed": rng.choice([None, rng.randrange(1 << 40)]),
        "epochs": rng.choice([1, 1, 2]), "workers": rng.choice([1, 2, 3]),
        "prefetch": rng.choice([None, 1, 2, 5]), "persistent": rng.random() < 0.5,
    }  # fmt: skip


def make_loader(kind, c, workers):
    """A loader of either kind for a configuration."""
    torch.manual_seed(17)
    generator = None if c["seed"] is None else torch.Generator().manual_seed(c["seed"])
    dataset = data.Samples(c["count"], c["kind"], c["broken"])
    chosen: Any = {
        "none": dict,
        "shuffle": lambda: {"shuffle": True},
        "random": lambda: {"sampler": torch_data.RandomSampler(dataset, generator=generator)},
        "replacement": lambda: {"sampler": torch_data.RandomSampler(dataset, True, 13)},
        "weighted": lambda: {
            "sampler": torch_data.WeightedRandomSampler(
                [1.0 + i for i in range(c["count"])], 11, generator=generator
            )
        },
        "subset": lambda: {
            "sampler": torch_data.SubsetRandomSampler(range(0, c["count"], 3), generator=generator)
        },
        "odd": lambda: {"sampler": data.Odd(dataset)},
        "stumbling": lambda: {"sampler": data.Stumbling(dataset, 7)},
        "batches": lambda: {
            "batch_sampler": torch_data.BatchSampler(
                torch_data.RandomSampler(dataset, generator=generator), 4, c["drop_last"]
            )
        },
        "ragged": lambda: {
            "batch_sampler": [list(range(n)) for n in range(1, min(6, c["count"] + 1))]
        },
    }[c["sampler"]]()
    if c["sampler"] not in BATCH_SAMPLERS:
        chosen |= {"batch_size": c["batch_size"], "drop_last": c["drop_last"]}
    if workers:
        chosen |= {"prefetch_factor": c["prefetch"], "persistent_workers": c["persistent"]}
    return kind(
        dataset,
        num_workers=workers,
        generator=generator,
        collate_fn=COLLATES[c["collate"]],
        **chosen,
    )


def describe(error):
    """An error's type and what it says, without the paths of a traceback.

    torch's reraise() has an error that refers to itself through its frame, and with it to the
    iterator: one that only the collection of garbage ends waits 5 s for each of its workers.
    """
    traceback.clear_frames(error.__traceback__)
    lines = str(error).splitlines() or [""]
    return "error", type(error), lines[0], lines[-1]


def events(kind, c, workers):
    """Everything a loader does over its epochs, and the generator's state afterwards."""
    seen = []
    try:
        loader = make_loader(kind, c, workers)
        for _ in range(c["epochs"]):
            seen.append(("length", len(loader)))
            seen += pass_over(loader)
    except Exception as error:
        seen.append(describe(error))
    return [*seen, ("generator", torch.get_rng_state())]


def pass_over(loader):
    """One epoch: batches and errors, in order."""
    try:
        iterator = iter(loader)
    except Exception as error:
        return [describe(error)]
    seen = []
    while len(seen) < MOST_EVENTS:
        try:
            seen.append(("batch", next(iterator)))
        except StopIteration:
            return seen
        except Exception as error:
            seen.append(describe(error))
    raise AssertionError("the epoch does not end")


def assert_same(ours, theirs):
    """Bit-identical, with the same types, all the way down."""
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


def compare(seed, workers):
    c = draw_configuration(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more workers than cores
        count = c["workers"] if workers else 0
        ours, theirs = events(DataLoader, c, count), events(torch_data.DataLoader, c, count)
    assert_same(ours, theirs)


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_without_workers_it_is_torchs(start):
    for seed in range(start, start + 20):
        compare(seed, workers=False)


@pytest.mark.parametrize(
    "start",
    [*range(0, 20, 5), *(pytest.param(n, marks=pytest.mark.long) for n in range(20, 40, 5))],
)
def test_with_workers_it_is_torchs(start):
    for seed in range(start, start + 5):
        compare(1000 + seed, workers=True)


def test_the_configurations_differ_and_hit_every_case():
    drawn = [draw_configuration(1000 + seed) for seed in range(40)]
    for name, least in (("kind", 10), ("sampler", 8), ("batch_size", 6), ("collate", 4)):
        assert len({str(c[name]) for c in drawn}) >= least
    assert any(c["broken"] >= 0 for c in drawn)
