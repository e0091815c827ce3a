"""StepInfo belongs to the batch it came with, whoever fetches ahead; states stand where it says."""

import copy
import pickle
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Ranks
from counterpoise.loader import DataLoader, StepInfo, StepLoader
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

COUNT = 40


def make(**changes: Any) -> DataLoader[Any, Any]:
    given: dict[str, Any] = {"grouping": "balanced", "budgets": {"tokens": 150}}
    given |= {"shuffle": True, "seed": 3, "samples_per_step": 10, "ranks": Ranks(virtual=2)}
    given |= {"accumulate": "auto", "collate_fn": made.as_list, **changes}
    return balanced_loader(made.Augmented(COUNT), **given)


def fetched_ahead(loader: Iterable[Any], most: int = 5) -> Iterator[Any]:
    """Yield what a loader yields, fetched by another thread up to `most` items ahead."""
    items: queue.Queue[Any] = queue.Queue(most)
    over = object()

    def fetch() -> None:
        for item in loader:
            items.put(item)
        items.put(over)

    thread = threading.Thread(target=fetch)
    thread.start()
    # nothing is taken before it has fetched as much as it can
    yield from iter(items.get, over)
    thread.join()


def names(batch: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(sample["name"] for sample in batch)


def test_each_info_names_the_samples_of_its_batch_however_far_ahead_they_are_fetched() -> None:
    loader = make()
    pairs = list(fetched_ahead(loader.with_info()))
    assert all(info.keys == names(batch) for batch, info in pairs)
    assert sorted(key for _, info in pairs for key in info.keys) == [
        f"k{n:04}" for n in range(COUNT)
    ]
    # a list holds all: `step_info` can be right for the last of them only
    assert loader.step_info is None
    loader.close()


def test_pairs_and_batches_are_one_loader_with_one_position() -> None:
    loader = make()
    everything = [info.keys for _, info in loader.with_info()]
    loader.set_epoch(0)
    pairs = loader.with_info()
    assert isinstance(pairs, torch.utils.data.DataLoader)
    assert pairs.num_steps == loader.num_steps
    begun = iter(pairs)
    first = [next(begun)[1].keys for _ in range(3)]
    state = pairs.state_dict()
    assert state == loader.state_dict()
    loader.load_state_dict(state)
    rest = [names(batch) for batch in loader]
    assert first + rest == everything
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(begun)
    loader.close()


@pytest.mark.parametrize("taken", [1, 5, 8])
def test_a_state_after_an_info_brings_what_was_fetched_ahead_again(taken: int) -> None:
    loader = make()
    pairs = list(loader.with_info())  # all of the epoch is fetched, `taken` of it is trained on
    state = loader.state_dict(after=pairs[taken - 1][1])
    assert state["epoch"] == 0
    loader.load_state_dict(state)
    assert [info.keys for _, info in loader.with_info()] == [i.keys for _, i in pairs[taken:]]
    loader.close()


def test_a_state_after_what_no_loader_gave_is_refused() -> None:
    loader = make()
    info = next(iter(loader.with_info()))[1]
    stranger = StepInfo(*[getattr(info, name) for name in StepInfo.__slots__[:12]])
    with pytest.raises(ValueError, match="that no loader handed out"):
        loader.state_dict(after=stranger)
    loader.close()
    plain: DataLoader[Any, Any] = DataLoader(range(4))
    for needs_balance in (plain.with_info, lambda: plain.state_dict(after=info)):
        with pytest.raises(ValueError, match="needs a balanced loader"):
            needs_balance()


def test_an_info_goes_to_another_process_and_to_a_device() -> None:
    loader = make()
    info = next(iter(loader.with_info()))[1]
    loader.close()
    for other in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info)):
        assert other == info
        assert other.costs == info.costs
        assert loader.state_dict(after=other) == loader.state_dict(after=info)
    assert info.to("meta", non_blocking=True) is info


def test_a_step_loader_yields_each_step_once_and_knows_how_many() -> None:
    loader = StepLoader[Any](make())
    assert len(loader) == COUNT // 10
    steps = list(fetched_ahead(loader))
    assert [step.number for step in steps] == list(range(len(loader)))
    for step in steps:
        assert len(step.microbatches) == 2 * step.infos[0].microbatches
        assert sum(info.samples for info in step.infos) == step.infos[0].step_samples == 10
    loader.load_state_dict(loader.state_dict(after=steps[1]))
    assert [step.number for step in loader] == [2, 3]
    loader.set_epoch(0)
    assert next(iter(loader)).infos == steps[0].infos
    loader.close()


def test_a_step_moves_to_a_device_as_frameworks_move_it() -> None:
    loader = StepLoader[Any](make(layout="padded", collate_fn=None))
    step = next(iter(loader))
    loader.close()
    there = step.to(torch.device("meta"))
    assert there.infos == step.infos
    for ours, theirs in zip(step.microbatches, there.microbatches, strict=True):
        assert ours["input_ids"].device.type == "cpu"
        assert theirs["input_ids"].device.type == "meta"
        assert theirs["name"] == ours["name"]


def test_a_plain_loader_has_no_steps() -> None:
    plain: Any = DataLoader(np.arange(4))
    with pytest.raises(ValueError, match="steps of a balanced DataLoader"):
        StepLoader(plain)
