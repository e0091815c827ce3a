"""When ranks wait: what the user has said, else what a framework says."""

import pickle
import re
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader, automatic
from tests.loader.auto import auto_data as data


def make(accumulate: int = 4, dataset: Any = None, **options: Any) -> DataLoader:
    grouping = options.pop("grouping", "auto")
    return DataLoader(
        dataset or data.Probed(192), batch_size=4, shuffle=True, collate_fn=data.join,
        balance=Balance(grouping, accumulate=accumulate, **options), ranks=Ranks(virtual=2),
    )  # fmt: skip


def adopt(loader: DataLoader) -> DataLoader:
    assert loader._late is not None
    loader._late.adopt_waits("step")
    return loader


def waits_of(loader: DataLoader) -> str:
    assert loader._balanced is not None
    return loader._balanced.plan.waits


def numbers(loader: DataLoader) -> list[list[int]]:
    return [sorted(n for b in step.microbatches for n in b["number"]) for step in loader.steps()]


@pytest.mark.parametrize("grouping", ["auto", "balanced"])
def test_a_framework_says_when_ranks_wait_and_users_overrule_it(grouping: str) -> None:
    assert waits_of(make(grouping=grouping)) == "microbatch"
    assert waits_of(adopt(make(grouping=grouping))) == "step"
    assert waits_of(adopt(make(grouping=grouping, waits="microbatch"))) == "microbatch"
    assert waits_of(make(grouping=grouping, waits="step")) == "step"


def test_nothing_changes_where_it_would_change_nothing() -> None:
    assert waits_of(adopt(make(accumulate=1))) == "microbatch"
    assert waits_of(adopt(make(grouping="balanced", partition="greedy"))) == "microbatch"
    assert waits_of(adopt(make(dataset=data.Texts(96, equal=True)))) == "microbatch"


def test_a_loader_that_was_used_plans_anew_with_the_same_samples_in_each_step() -> None:
    loader = make()
    before = numbers(loader)
    adopt(loader)
    loader.set_epoch(0)
    assert numbers(loader) == before


@pytest.mark.parametrize("grouping", ["auto", "balanced"])
def test_a_position_that_was_loaded_before_stays(grouping: str) -> None:
    loader = make(grouping=grouping)
    whole = numbers(loader)
    loader.set_epoch(0)
    steps = loader.steps()
    next(steps), next(steps)
    again = make(grouping=grouping)
    again.load_state_dict(loader.state_dict())
    assert numbers(adopt(again)) == whole[2:]


def test_a_position_inside_a_step_is_refused_by_another_plan() -> None:
    loader = make()
    next(iter(loader))
    again = make()
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="only the very same plan can continue"):
        adopt(again)


@pytest.mark.parametrize("grouping", ["auto", "balanced"])
def test_a_copy_knows_what_a_framework_has_told(grouping: str) -> None:
    loader = adopt(make(grouping=grouping))
    assert waits_of(pickle.loads(pickle.dumps(loader))) == "step"
    assert waits_of(loader) == "step"


def test_the_line_at_the_start_forecasts_the_loop_that_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(automatic, "tell", lambda _, text: lines.append(text))
    for loader in (make(), adopt(make())):
        next(iter(loader))
    said = r"step (.*) of random order's: ranks work (.*) and wait (.*) instead of (.*) and (.*); l"
    found = [[float(each) for each in re.search(said, line).groups()] for line in lines]
    for step, works, waits, worked, waited in found:
        assert works + waits == pytest.approx(step, abs=0.02)
        assert worked + waited == pytest.approx(1, abs=0.02)
    # random order, too, waits less where it waits once a step
    assert found[1][4] < found[0][4]
