"""Holes never make a batch that collate_fn cannot make, and all ranks stay in step."""

import json
import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from counterpoise import OnError, Ranks
from counterpoise.loader import Balance, DataLoader, LoaderError

COUNT, RANKS, ACCUMULATE, SIZE = 24, 2, 2, 8


class Data:
    """Numbers, some of which cannot be read; number n has n + 1 tokens, of which all are labels."""

    def __init__(self, broken: set[int], count: int = COUNT) -> None:
        self.broken, self.count = broken, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            raise ValueError("cannot be read")
        return index


def loader(broken: set[int], workers: int = 0, count: int = COUNT, **more: Any) -> DataLoader:
    balance = Balance(accumulate=ACCUMULATE, samples_per_step=more.pop("size", SIZE))
    costs = {"label_tokens": list(range(1, count + 1))}
    given: Any = {"shuffle": False, "on_error": "skip", "ranks": Ranks(virtual=RANKS)} | more
    return DataLoader(
        Data(broken, count), balance=balance, cost=costs, num_workers=workers, **given
    )


def a_microbatch(step: int = 1) -> set[int]:
    """Return the samples of one microbatch of a step."""
    made = loader(set())
    infos = [info for each in made.steps() if each.number == step for info in each.infos]
    return {int(key) for key in infos[0].keys}


def numbers(batches: Any) -> list[int]:
    return list(chain.from_iterable(batch.tolist() for batch in batches))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_microbatch_of_which_nothing_is_left_gets_another_sample(workers: int) -> None:
    broken = a_microbatch()
    made = loader(broken, workers)
    steps = list(made.steps())
    made.close()
    assert [len(each.infos) for each in steps] == [RANKS * ACCUMULATE] * 3
    assert all(info.samples for each in steps for info in each.infos)
    assert sorted(numbers(chain.from_iterable(each.microbatches for each in steps))) == sorted(
        set(range(COUNT)) - broken
    )
    assert {key for each in steps for info in each.infos for key in info.holes} == {
        str(index) for index in broken
    }
    assert made.left_out == len(broken)


def test_the_weights_of_the_step_are_those_of_what_it_delivers() -> None:
    made = loader(a_microbatch())
    for step in made.steps():
        counts = [len(batch) for batch in step.microbatches]
        tokens = [sum(batch.tolist()) + len(batch) for batch in step.microbatches]
        assert counts == [info.samples for info in step.infos]
        assert tokens == [info.label_tokens for info in step.infos]
        assert {info.step_samples for info in step.infos} == {sum(counts)}
        assert {info.step_label_tokens for info in step.infos} == {sum(tokens)}


def state_after_each(made: DataLoader) -> Iterator[tuple[list[int], Any]]:
    for batch in made:
        yield batch.tolist(), json.loads(json.dumps(made.state_dict()))


@pytest.mark.parametrize("size", [SIZE, RANKS * ACCUMULATE])
def test_resuming_after_every_microbatch_gives_the_rest(size: int) -> None:
    """With as many samples as microbatches one hole leaves out its step."""
    broken = a_microbatch() if size == SIZE else {9}
    whole = list(state_after_each(loader(broken, size=size)))
    for done, (_, state) in enumerate(whole, start=1):
        resumed = loader(broken, size=size)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == [given for given, _ in whole[done:]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_with_too_few_is_left_out_on_all_ranks_and_told(
    workers: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    letters = tmp_path / "letters"
    made = loader({9}, workers, size=4, on_error=OnError("skip", dead_letter=str(letters)))
    with caplog.at_level(logging.WARNING):
        steps = [(each.number, numbers(each.microbatches), made.left_out) for each in made.steps()]
    made.close()
    assert [number for number, *_ in steps] == [0, 1, 3, 4, 5]
    assert sorted(chain.from_iterable(given for _, given, _ in steps)) == sorted(
        set(range(COUNT)) - {8, 9, 10, 11}
    )
    assert [left_out for *_, left_out in steps] == [0, 0, 4, 4, 4]
    told = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("step 2 of epoch 0 is left out: of its 4 samples fewer can be used")
    written = {each["key"]: each["reason"] for each in map(json.loads, letters.open())}
    assert written.keys() == {"8", "9", "10", "11"}
    assert "cannot be read" in written["9"]
    assert written["8"].startswith("usable, but step 2 has fewer such samples than microbatches")


def test_what_goes_with_a_step_counts_as_left_out() -> None:
    made = loader({9}, size=4, on_error=OnError("skip", max_errors=3))
    with pytest.raises(LoaderError, match=r"4 samples of epoch 0 could not be used up to step 2"):
        list(made)


def test_a_collate_fn_that_takes_no_samples_gets_the_empty_microbatch() -> None:
    broken = a_microbatch()
    made = loader(broken, collate_fn=list)
    infos = [info for each in made.steps() for info in each.infos]
    assert [info.step for info in infos if info.empty] == [1]
