"""A source of a user's own: a subclass with `__len__` and `__getitem__`, the rest by default."""

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.workers import PlainSource, Source

COUNT = 48


class Lengths(Source):
    """Samples of different lengths, with noise from a global generator."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.full((1 + index * 7 % 31,), index)
        return {"input_ids": ids, "noise": random.random()}


class Costed(Lengths):
    """The same, which say what they cost."""

    def cost(self, sample: dict[str, Any]) -> dict[str, int]:
        return {"tokens": len(sample["input_ids"])}


def loader(data: Any, balance: Any = "auto", **more: Any) -> Any:
    return cp.DataLoader(data, 4, shuffle=True, balance=balance, collate_fn=list, **more)


def indexes(batches: Any) -> list[list[int]]:
    return [[int(sample["input_ids"][0]) for sample in batch] for batch in batches]


def test_defaults_are_those_of_a_plain_data_set() -> None:
    own, plain = Lengths(), PlainSource([Lengths()[index] for index in range(COUNT)])
    assert [own.key(n) for n in range(COUNT)] == [plain.key(n) for n in range(COUNT)]
    assert own.probe(3) == plain.probe(3)
    assert (own.knows_costs, own.decode_first, own.names_samples) == (False, False, False)
    (ones,) = own.known_costs(["samples"]) or ()
    assert ones.tolist() == [1] * COUNT
    assert own.load(5, epoch=1, seed=2)["noise"] == own.load(5, epoch=1, seed=2)["noise"]
    assert own.load(5, epoch=1, seed=2)["noise"] != own.load(5, epoch=2, seed=2)["noise"]
    with pytest.raises(ValueError, match="workers elsewhere cannot read a Lengths"):
        own.spec()


def test_costs_are_found_or_measured_by_a_method() -> None:
    assert sorted(n for batch in indexes(loader(Lengths())) for n in batch) == [*range(COUNT)]
    data = Costed()
    assert (data.decode_first, data.knows_costs) == (True, True)
    assert data.probe(4).cost == {"tokens": 29}
    balance = cp.Balance(budgets={"tokens": 64}, samples_per_step=12, accumulate="auto")
    made = cp.DataLoader(data, shuffle=True, balance=balance, collate_fn=list)
    infos = [info for step in made.steps() for info in step.infos]
    assert sum(info.samples for info in infos) == COUNT
    assert max(info.costs["tokens"] for info in infos) <= 64


def test_a_table_says_all_costs_beforehand() -> None:
    class Told(Lengths):
        @property
        def cost_table(self) -> dict[str, Any]:
            return {"tokens": [1 + n * 7 % 31 for n in range(COUNT)]}

    data = Told()
    assert (data.knows_costs, data.decode_first, data.resources) == (True, False, ("tokens",))
    assert data.probe(4).cost == Costed().probe(4).cost == {"tokens": 29}
    (column,) = data.known_costs(["tokens"]) or ()
    assert column.tolist() == data.cost_table["tokens"]
    assert data.known_costs(["tiles"]) is None


def test_it_is_pickled_and_its_workers_are_spawned() -> None:
    copy = pickle.loads(pickle.dumps(Costed()))
    assert copy.fingerprint() == Costed().fingerprint()
    here = indexes(loader(Costed(), "balanced"))
    spawned = loader(Costed(), "balanced", num_workers=1, multiprocessing_context="spawn")
    assert indexes(spawned) == here
    spawned.close()


@pytest.mark.parametrize("kind", [Lengths, Costed])
def test_a_ledger_goes_on_with_it(kind: type[Source]) -> None:
    whole = indexes(loader(kind()))
    begun = loader(kind())
    iterator = iter(begun)
    first = indexes(next(iterator) for _ in range(5))
    rest = loader(kind())
    rest.load_state_dict(begun.state_dict())
    assert first + indexes(rest) == whole


def test_what_it_needs_is_said_when_it_is_made() -> None:
    class Nothing(Source):
        pass

    with pytest.raises(TypeError, match="__getitem__"):
        Nothing()  # type: ignore[abstract]


def test_threads_load_it_where_it_says_so() -> None:
    class Safe(Lengths):
        thread_safe = True

        def load(self, index: int, epoch: int = 0, seed: int = 0) -> dict[str, Any]:
            noise = np.random.default_rng([seed, epoch, index]).random()
            return {**self[index], "noise": noise}

    threaded = loader(Safe(), "balanced", num_workers=1, decode_threads=2)
    assert indexes(threaded) == indexes(loader(Safe(), "balanced"))
    threaded.close()
    with pytest.raises(ValueError, match=r"samples of Lengths may only be .*thread_safe = True"):
        loader(Lengths(), "balanced", num_workers=1, decode_threads=2)
