"""Balanced loaders: what arrives follows from data, seed and plan, and from nothing else."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from counterpoise import Ranks
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import Window
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.balancer.run.run import FIRST_PORTION
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

pytestmark = pytest.mark.slow

COUNT = 61
KEYS = Counter(f"k{index:04}" for index in range(COUNT))
PLANS: dict[str, dict[str, Any]] = {
    "isf": {"grouping": "isf", "budgets": {"tiles": 12, "tokens": 120}, "accumulate": "auto"},
    "balanced": {"grouping": "balanced", "budgets": {"tokens": 150}, "accumulate": "auto"},
    "fixed": {"grouping": "fixed", "batch_size": 2, "accumulate": 4},
}


def make(dataset=None, plan="isf", **changes):
    given: dict[str, Any] = {
        "shuffle": True,
        "seed": 3,
        "samples_per_step": 16,
        "ranks": Ranks(virtual=2),
    }
    given |= {"layout": "padded", **PLANS[plan], **changes}
    return balanced_loader(dataset or made.Augmented(COUNT), **given)


def digests(loader, epochs=1):
    """Return (epoch, step, microbatch, rank, keys, digest) of all that the loader delivers."""
    found = []
    for _ in range(epochs):
        for batch in loader:
            info = loader.step_info
            place = info.epoch, info.step, info.microbatch, info.rank
            found.append((*place, info.keys, made.digest(batch)))
    loader.close()
    return found


def reference(plan, count, costs, shuffle=True, epoch=0):
    """Return the plan itself, asked of the planner window by window, as ordinals' keys."""
    order = permutation(count, plan.seed, epoch, shuffle=shuffle)
    planner, start, step, found = make_planner(plan), 0, 0, []
    while start < count:
        end = min(start + planner.window_samples, count)
        shown = np.array([costs(int(index)) for index in order[start:end]], np.int64)
        planned = planner.plan(Window(epoch, step, start, shown, end == count))
        for batch in planned.batches:
            for m in range(len(batch.ranks[0])):
                for rank, microbatches in enumerate(batch.ranks):
                    names = [f"k{order[o]:04}" for o in microbatches[m].ordinals]
                    found.append((epoch, batch.step, m, rank, tuple(names)))
        start, step = start + planned.consumed, step + len(planned.batches)
    return found


def costs(index):
    return tuple(made.Augmented(COUNT).probe(index).cost.values())


# --- whatever the number of workers


@pytest.mark.parametrize("plan", PLANS)
def test_microbatches_are_those_of_the_plan_and_hold_every_sample_once(plan):
    loader = make(plan=plan)
    found = digests(loader, epochs=2)
    expected = [
        each
        for epoch in (0, 1)
        for each in reference(loader._balanced.plan, COUNT, costs, epoch=epoch)
    ]
    assert [each[:5] for each in found] == expected
    for epoch in (0, 1):
        assert Counter(key for each in found if each[0] == epoch for key in each[4]) == KEYS


def test_augmentation_differs_between_epochs_and_seeds_but_not_between_runs():
    def noise(**changes):
        loader = make(plan="fixed", shuffle=False, **changes)
        return [digest for *_, digest in digests(loader, epochs=2)]

    steps = len(noise()) // 2
    assert noise() == noise()
    assert noise()[:steps] != noise()[steps:]
    assert noise() != noise(seed=4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("buffer_bytes", [6_000, 1 << 30])
def test_samples_that_must_be_decoded_to_be_measured_make_the_same_batches(workers, buffer_bytes):
    dataset = made.Measured(COUNT)
    loader = make(dataset, cost=made.measure, num_workers=workers, buffer_bytes=buffer_bytes)
    assert digests(loader) == digests(make())


def test_what_has_to_be_loaded_to_be_measured_is_loaded_twice_and_in_later_epochs_once():
    """The first few once more, to see whether their cost is another in the next epoch.

    And one: the first sample draws, and is loaded once more, seeded.
    """
    dataset = made.Measured(COUNT)
    loader, loaded = make(dataset, cost=made.measure, samples_per_step=8), [dataset.loaded]
    for _ in range(3):
        list(loader)
        loaded.append(dataset.loaded)
    loads = [after - before for before, after in itertools.pairwise(loaded)]
    assert loads == [2 * COUNT + FIRST_PORTION + 1, COUNT + 1, COUNT + 1]


def test_a_probe_loads_nothing():
    dataset = made.Augmented(COUNT)
    digests(make(dataset))
    assert dataset.loaded == COUNT + 1  # the first sample draws, and is loaded once more, seeded


# --- layouts and counts


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("layout", ["padded", "packed", "torch"])
def test_step_info_counts_what_was_delivered(layout, workers):
    collate = made.as_list if layout == "torch" else None
    loader = make(layout=layout, collate_fn=collate, num_workers=workers)
    for step in loader.steps():
        counted = [_count(batch, layout) for batch in step.microbatches]
        told = [
            (info.samples, info.label_tokens, info.costs["tokens"], info.costs["tiles"])
            for info in step.infos
        ]
        assert counted == told
        for rank in (0, 1):
            mine = [c for c, info in zip(counted, step.infos, strict=True) if info.rank == rank]
            for info in (info for info in step.infos if info.rank == rank):
                assert info.rank_samples == sum(c[0] for c in mine)
                assert info.rank_label_tokens == sum(c[1] for c in mine)
        for info in step.infos:
            assert info.step_samples == sum(c[0] for c in counted)
            assert info.step_label_tokens == sum(c[1] for c in counted)
            assert info.microbatches * 2 == len(step.infos)
    loader.close()


def _count(batch, layout):
    if layout == "torch":
        return (
            len(batch),
            sum(int((sample["labels"][1:] != -100).sum()) for sample in batch),
            sum(len(sample["input_ids"]) for sample in batch),
            sum(len(sample["pixel_values"]) for sample in batch),
        )
    samples = len(batch.get("name", ()))
    tokens = batch["attention_mask"].sum() if layout == "padded" else batch["cu_seq_lens"][-1]
    tiles = len(batch["pixel_values"]) if samples else 0
    return samples, int((batch["labels"] != -100).sum()), int(tokens) if samples else 0, tiles


def test_the_last_partial_step_is_padded_with_empty_microbatches():
    loader = make(plan="fixed")
    *_, last = loader.steps()
    assert last.number == COUNT // 16
    assert len(last.microbatches) == 2 * 4
    assert sum(info.samples for info in last.infos) == COUNT % 16
    for batch, info in zip(last.microbatches, last.infos, strict=True):
        if info.empty:
            assert (batch["labels"] == -100).all()
            assert (info.label_tokens, info.images, info.keys) == (0, False, ())
            assert info.costs == dict.fromkeys(last.infos[0].costs, 0)
    assert set(last.infos[0].costs) > {"tokens", "tiles"}


def test_drop_last_leaves_the_partial_step_out():
    loader = make(plan="fixed", drop_last=True)
    numbers = [step.number for step in loader.steps()]
    assert numbers == list(range(COUNT // 16)) == list(range(loader.num_steps))
    assert len(loader) == len(list(loader)) == 8 * (COUNT // 16)


def test_batches_can_be_changed_in_place():
    for batch in make(layout="padded"):
        batch["input_ids"] += 1


def test_batches_are_pinned_where_there_is_an_accelerator(monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    pinned = "counterpoise.loader.collate.chosen.pin"
    monkeypatch.setattr(pinned, lambda batch: ("pinned", batch))
    assert next(iter(make(pin_memory=True)))[0] == "pinned"
    assert next(iter(make(pin_memory=True, fields={"labels"})))[1].keys() == {"labels"}
    assert "input_ids" in next(iter(make()))


# --- epochs and iterators


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_was_left_behind_says_so(workers):
    with_close = make(num_workers=workers)
    for leave in (
        iter,
        lambda loader: loader.set_epoch(1),
        lambda loader: loader.load_state_dict(loader.state_dict()),
        lambda loader: loader.close(),
    ):
        loader = with_close
        loader.set_epoch(0)
        iterator = iter(loader)
        next(iterator)
        leave(loader)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="this iterator is over"):
                next(iterator)
    with_close.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_of_which_nothing_was_taken_takes_the_epoch_that_is_chosen(workers):
    loader = make(num_workers=workers)
    whole = [each for each in digests(make(), epochs=3) if each[0] == 2]
    iterator = iter(loader)
    for epoch in (1, 2):  # as Lightning does where it resumes between epochs
        loader.set_epoch(epoch)
    assert len(list(iterator)) == len(whole)
    loader.set_epoch(2)
    assert digests(loader) == whole
    loader.close()


def test_an_iterator_of_which_nothing_was_taken_is_over_once_there_is_another():
    loader = make()
    first = iter(loader)
    loader.set_epoch(1)
    second = iter(loader)
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(first)
    assert next(second) is not None
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(first)


def test_an_exhausted_iterator_stays_exhausted():
    loader = make()
    iterator = iter(loader)
    assert len(list(iterator)) > 0
    assert list(iterator) == []


def test_a_loader_can_be_used_again_after_it_was_closed():
    loader = make(num_workers=1)
    first = digests(loader)
    loader.set_epoch(0)
    assert digests(loader) == first


# --- real data
