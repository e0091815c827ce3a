"""An exception inside next() loses nothing: who catches it and goes on gets the same microbatch."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from counterpoise import OnError, Ranks
from counterpoise.loader import Balance, DataLoader
from counterpoise.workers.sources import dead_letters
from counterpoise.workers.sources.dead_letters import append_letter, read_letters
from tests.loader.alarms import Alarms

COUNT = 60


class Collate:
    """Collates, but raises at the calls of these numbers."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.calls = 0

    def __call__(self, samples: list[Any]) -> list[Any]:
        if not samples:
            return samples  # the loader asks for a batch of no samples when it is made
        self.calls += 1
        if self.calls in self.failing:
            raise MemoryError(f"call {self.calls}")
        return samples


def loader(workers: int = 0, collate: Any = list, data: Any = None, **more: Any) -> DataLoader:
    balance = Balance(accumulate=2, samples_per_step=8)
    given: Any = {"cost": {"tokens": [1 + n % 7 for n in range(COUNT)]}} | more
    return DataLoader(
        list(range(COUNT)) if data is None else data, balance=balance, shuffle=True,
        ranks=Ranks(virtual=2), num_workers=workers, collate_fn=collate, **given,
    )  # fmt: skip


def persistently(source: Iterator[Any], allowed: Any, seen: list[Any]) -> list[Any]:
    """Return all that an iterator gives, going on after the allowed exceptions."""
    found = []
    while True:
        try:
            found.append(next(source))
        except StopIteration:
            return found
        except allowed as error:
            seen.append(error)


# Each process counts its own calls, and of two nobody knows how many the other makes.
COUNTS = [(0, {3}), (1, {3}), (2, {1, 2, 3, 4})]


@pytest.mark.parametrize(("workers", "raised"), COUNTS)
def test_the_microbatch_whose_collate_fn_raises_comes_again(workers: int, raised: set[int]) -> None:
    made = loader(workers, Collate(3, 8) if workers > 1 else Collate(3, 8, 9))
    seen: list[MemoryError] = []
    found = persistently(iter(made), MemoryError, seen)
    made.close()
    assert found == list(loader(0))
    assert len(seen) in raised


@pytest.mark.parametrize(("workers", "raised"), COUNTS)
def test_a_step_that_was_begun_is_finished(workers: int, raised: set[int]) -> None:
    made = loader(workers, Collate(3, 8) if workers > 1 else Collate(3, 8, 9))
    seen: list[MemoryError] = []
    found = persistently(made.steps(), MemoryError, seen)
    made.close()
    assert [step.microbatches for step in found] == [s.microbatches for s in loader(0).steps()]
    assert len(seen) in raised


@pytest.mark.parametrize("workers", [0, 1])
def test_a_note_says_of_which_microbatch_collate_fn_has_raised(workers: int) -> None:
    made = loader(workers, Collate(*range(2, 60)), prefetch_factor=1 if workers else None)
    batches = iter(made)
    next(batches)
    where = "in DataLoader worker process 0" if workers else "^call"
    for _ in range(4):
        with pytest.raises(MemoryError, match=where) as caught:
            next(batches)
        (note,) = caught.value.__notes__
        assert note.startswith("microbatch 0 of step 0 (samples ")
        assert "and comes again until it is: mend collate_fn" in note
    made.close()


def test_the_ledger_is_of_what_was_returned() -> None:
    made = loader(0, Collate(3))
    batches = iter(made)
    given = [next(batches), next(batches)]
    before = made.state_dict()
    with pytest.raises(MemoryError):
        next(batches)
    assert made.state_dict() == before
    resumed = loader(0)
    resumed.load_state_dict(before)
    assert [*given, *resumed] == list(loader(0))


class Broken(list[int]):
    """Numbers, every tenth of which cannot be read."""

    def __getitem__(self, index: Any) -> Any:
        if index % 10 == 3:
            raise ValueError("cannot be read")
        return super().__getitem__(index)


def test_an_exception_between_two_letters_loses_no_microbatch_and_writes_none_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def append(path: str, letter: Any) -> None:
        calls.append(letter.key)
        if len(calls) in (1, 4):
            raise KeyboardInterrupt
        append_letter(path, letter)

    monkeypatch.setattr(dead_letters, "record_letter", append)
    letters = tmp_path / "letters"
    made = loader(0, data=Broken(range(COUNT)), on_error=OnError("skip", dead_letter=str(letters)))
    seen: list[KeyboardInterrupt] = []
    found = persistently(iter(made), KeyboardInterrupt, seen)
    assert len(seen) == 2
    good = {index for index in range(COUNT) if index % 10 != 3}
    assert Counter(chain.from_iterable(found)) == Counter(good)
    assert sorted(int(each.key) for each in read_letters(letters)) == list(range(3, COUNT, 10))


# --- signals


@pytest.mark.parametrize(
    ("workers", "moments", "whole_steps"),
    [
        (0, 30, True),
        (2, 20, False),
        *(
            pytest.param(n, 300, whole, marks=pytest.mark.long)
            for n in (0, 2)
            for whole in (False, True)
        ),
    ],
)
# A handler that raises while a message is freed is not heard of.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_handlers_that_raise_at_random_moments_lose_nothing(
    workers: int, moments: int, whole_steps: bool
) -> None:
    def batches(made: DataLoader) -> Iterator[Any]:
        return made.steps() if whole_steps else iter(made)

    expected, made = loader(0), loader(workers)
    with Alarms(seed=workers, longest_s=2e-3) as alarms:
        while alarms.raised < moments:
            found = alarms.take(batches(made))
            assert [str(each) for each in found] == [str(each) for each in batches(expected)]
    made.close()
