"""Loops whose microbatches have one shape: tables, functions, probes and auto; resumed anywhere."""

import json
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader, Dataset

import counterpoise as cp
from counterpoise.workers import Probe

SHAPES = cp.Shapes(bucket_by="shape")
SAMPLES = 600


class Images(Dataset[torch.Tensor]):
    """Images of 7 heights, each full of its number."""

    def __init__(self, samples: int = SAMPLES) -> None:
        draw = np.random.default_rng(0)
        self.heights = 4 + draw.choice(7, samples, p=[0.3, 0.3, 0.2, 0.1, 0.06, 0.03, 0.01])

    def __len__(self) -> int:
        return len(self.heights)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((int(self.heights[index]), 6), float(index))

    @property
    def costs(self) -> dict[str, np.ndarray]:
        return {"pixels": self.heights * 6, "shape": self.heights}


class Probed(Images):
    def probe(self, index: int) -> Probe:
        height = int(self.heights[index])
        return Probe(str(index), {"pixels": 6 * height, "shape": height})


def numbers(batches: Any) -> list[int]:
    return [int(row[0, 0]) for batch in batches for row in batch]


def measure(image: torch.Tensor) -> dict[str, int]:
    return {"pixels": image.numel(), "shape": len(image)}


@pytest.mark.parametrize("grouping", ["fixed", "auto"])
@pytest.mark.parametrize("found", ["table", "function", "probe"])
def test_batches_stack_whatever_says_the_shape(grouping: Any, found: str) -> None:
    data = Probed() if found == "probe" else Images()
    said = {"table": data.costs, "function": measure, "probe": None}[found]
    balance = cp.Balance(grouping, mode="window", shapes=SHAPES)
    loader = cp.DataLoader(data, batch_size=4, shuffle=True, balance=balance, cost=said)
    batches = [*loader]  # torch's default_collate stacks them, or raises
    assert sorted(numbers(batches)) == [*range(SAMPLES)]
    assert sum(len(batch) == 4 for batch in batches) > 0.9 * len(batches)


@pytest.mark.parametrize("options", [{"budgets": {"pixels": 240}}, {}])
def test_smaller_images_make_larger_batches_of_like_work(options: Any) -> None:
    data = Images()
    balance = cp.Balance(mode="window", samples_per_step=24, shapes=SHAPES, **options)
    loader = cp.DataLoader(data, shuffle=True, balance=balance, cost=data.costs, ranks=(0, 4))
    steps = [*loader.steps()]
    for info in (info for step in steps[:-1] for info in step.infos):
        assert info.costs["shape"] * 6 * info.samples == info.costs["pixels"] <= 240
    sizes = {info.costs["shape"]: info.samples for step in steps for info in step.infos}
    assert sizes[4] > sizes[7]


@pytest.mark.parametrize("mode", ["window", "epoch"])
def test_a_sampler_lists_samples_of_one_shape_on_each_rank(mode: Any) -> None:
    data, seen = Images(), []
    balance = cp.Balance("fixed", mode=mode, shapes=SHAPES)
    lengths = set()
    for rank in range(3):
        sampler = cp.BalancedBatchSampler(data.costs, balance, batch_size=4, ranks=(rank, 3))
        loader: Any = TorchDataLoader(data, batch_sampler=sampler)
        batches = [*loader]
        lengths.add(len(batches))
        assert len(sampler) == len(batches)
        assert sampler.info(7).costs["shape"] == batches[7].shape[1]
        seen += numbers(batches)
    assert sorted(seen) == [*range(SAMPLES)]
    assert len(lengths) == 1


def test_a_sampler_goes_on_where_its_state_was_taken() -> None:
    data, balance = Images(), cp.Balance("fixed", mode="epoch", shapes=SHAPES)

    def make(ranks: int) -> Any:
        return cp.BalancedBatchSampler(data.costs, balance, batch_size=4, ranks=(0, ranks))

    first, again = make(2), make(2)
    batches = iter(first)
    for _ in range(31):
        next(batches)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [*again] == [*batches]
    with pytest.raises(ValueError, match="resume with the same ranks"):
        make(1).load_state_dict(first.state_dict())


MICROBATCHES = 12  # of a step, on all ranks together


def make_loader(data: Images, rank: int, ranks: int, options: dict[str, Any]) -> Any:
    balance = cp.Balance(accumulate=MICROBATCHES // ranks, shapes=SHAPES, seed=3, **options)
    size = 2 if options["grouping"] == "fixed" else None
    return cp.DataLoader(
        data, batch_size=size, shuffle=True, balance=balance, cost=data.costs, ranks=(rank, ranks),
        collate_fn=torch.stack,
    )  # fmt: skip


def read_steps(data: Images, ranks: int, options: Any, state: Any) -> dict[int, list[list[str]]]:
    """The keys of each microbatch of all ranks, by step, from a state on."""
    steps = defaultdict(list)
    for rank in range(ranks):
        loader = make_loader(data, rank, ranks, options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        for step in loader.steps():
            steps[step.number] += [sorted(info.keys) for info in step.infos]
    return {number: sorted(groups) for number, groups in steps.items()}


def check_resumes(count: int, options: dict[str, Any]) -> None:
    """Go on from random steps on other numbers of ranks: the microbatches that were left."""
    data, draw = Images(), random.Random(5)
    whole = read_steps(data, 12, options, None)
    assert sorted(key for step in whole.values() for group in step for key in group) == sorted(
        map(str, range(SAMPLES))
    )
    states = {}
    for ranks in (1, 4, 12):
        loader = make_loader(data, 0, ranks, options)
        states[ranks] = [loader.state_dict()]
        states[ranks] += [loader.state_dict() for _ in loader.steps()][:-1]
    for _ in range(count):
        saved = draw.choice((1, 4, 12))
        number = draw.randrange(len(whole))
        ranks = draw.choice([count for count in (1, 2, 3, 4, 6, 12) if count != saved])
        rest = read_steps(data, ranks, options, states[saved][number])
        assert rest == {step: groups for step, groups in whole.items() if step >= number}


WAYS: list[dict[str, Any]] = [
    {"grouping": "fixed", "mode": "window"},
    {"grouping": "fixed", "mode": "epoch"},
    {"grouping": "balanced", "mode": "window", "samples_per_step": 24},
    {"grouping": "balanced", "mode": "epoch", "samples_per_step": 24, "budgets": {"pixels": 99}},
]


@pytest.mark.parametrize("options", WAYS)
def test_a_run_goes_on_at_any_step_on_other_ranks(options: dict[str, Any]) -> None:
    check_resumes(2, options)


@pytest.mark.long
@pytest.mark.parametrize("options", WAYS)
def test_a_run_goes_on_at_50_random_steps_on_other_ranks(options: dict[str, Any]) -> None:
    check_resumes(50, options)


def test_inside_a_step_the_ranks_must_stay() -> None:
    data, options = Images(), WAYS[0]
    loader = make_loader(data, 0, 4, options)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    again = make_loader(data, 0, 4, options)
    again.load_state_dict(state)
    assert numbers(again) == numbers(batches)
    with pytest.raises(ValueError, match=r"inside step 1 .* resume with the same ranks"):
        make_loader(data, 0, 2, options).load_state_dict(state)


def test_other_steps_are_refused() -> None:
    data, options = Images(), WAYS[2]
    loader = make_loader(data, 0, 4, options)
    steps = iter(loader.steps())
    next(steps), next(steps)
    fewer = cp.Balance(accumulate=2, shapes=SHAPES, seed=3, **options)
    other = cp.DataLoader(data, shuffle=True, balance=fewer, cost=data.costs, ranks=(0, 4))
    with pytest.raises(ValueError, match="only the very same plan can continue"):
        other.load_state_dict(loader.state_dict())
