"""What `auto` has found stands in the ledger, and is taken from there."""

import copy
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader, LoaderError, automatic
from counterpoise.loader.adapters.trainer import adopt_model
from tests.loader.auto import auto_data as data
from tests.loader.auto.test_auto_times import SHAPE


def make(dataset: Any, virtual_ranks: int = 2, accumulate: int = 2, **more: Any) -> DataLoader:
    return DataLoader(
        dataset, batch_size=4, shuffle=True, balance=Balance("auto", accumulate=accumulate),
        collate_fn=data.pad, ranks=Ranks(virtual=virtual_ranks), **more,
    )  # fmt: skip


def test_a_resume_inside_a_step_goes_on_with_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = [list(batch["number"]) for batch in make(data.Texts(90))]
    loader = make(data.Texts(90), num_workers=1)
    batches = iter(loader)
    first = [list(next(batches)["number"]) for _ in range(7)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()

    def never(*_: Any) -> Any:
        raise AssertionError("the first samples were read again")

    monkeypatch.setattr(automatic, "ask_worker", never)
    again = make(data.Texts(90))
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert first + [list(batch["number"]) for batch in again] == whole


def test_the_choice_is_the_ledgers_whatever_the_first_samples_are_now() -> None:
    loader = make(data.Texts(90))
    next(loader.steps())
    state = loader.state_dict()
    other = make(data.Changed(90))
    assert len(other) > 0
    assert '"varies":false' in other.state_dict()["auto"]
    other.load_state_dict(state)
    assert other.state_dict()["auto"] == state["auto"]
    assert next(iter(other))["input_ids"].shape == (4, 3)


def test_a_choice_inside_a_step_goes_on_with_samples_that_cost_the_same() -> None:
    loader = make(data.Texts(90))
    next(iter(loader))
    other = make(data.Changed(90))
    other.load_state_dict(loader.state_dict())
    with pytest.raises(LoaderError, match="its samples cost something else now"):
        next(iter(other))


def test_other_ranks_of_the_same_global_batch_go_on_between_steps() -> None:
    whole = [
        sorted(n for b in step.microbatches for n in b["number"])
        for step in make(data.Texts(96)).steps()
    ]
    loader = make(data.Texts(96))
    steps = loader.steps()
    next(steps), next(steps)
    again = make(data.Texts(96), virtual_ranks=1, accumulate=4)
    again.load_state_dict(loader.state_dict())
    rest = [sorted(n for b in step.microbatches for n in b["number"]) for step in again.steps()]
    assert rest == whole[2:]


def test_a_copy_has_the_position_and_what_was_found() -> None:
    loader = make(data.Texts(90))
    next(iter(loader))
    assert copy.deepcopy(loader).state_dict() == loader.state_dict()


@pytest.mark.parametrize("begun", [False, True])
def test_a_copy_knows_what_a_framework_has_told(begun: bool) -> None:
    loader = make(data.Texts(90), accumulate=1)
    loader._late.adopt(accumulate=6)  # of both ranks that are played here
    adopt_model(loader, SimpleNamespace(config=SimpleNamespace(**SHAPE)), normalises=True)
    if begun:
        next(iter(loader))
    copied = pickle.loads(pickle.dumps(loader))
    assert copied.state_dict() == loader.state_dict()
    loader.set_epoch(0)
    whole = [list(each["number"]) for each in loader]  # from the epoch's beginning
    assert [list(each["number"]) for each in copied] == whole[begun:]
    infos = [info for _, info in copied.with_info()]
    assert {info.microbatches for info in infos} == {3}
    assert len({info.samples for info in infos}) > 1  # counts are free
