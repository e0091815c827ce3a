"""Processes that share ranks on one host: batches of a local loop, and errors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import DataLoader, LoaderError
from tests.flat_options import flat_balance
from tests.loader import balanced_data as made

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("through_balancer")]
COUNT = 40


def loader(data: Any, **more: Any) -> DataLoader[Any, Any]:
    balance: Any = {"accumulate": 2, "samples_per_step": 8} | more.pop("balance", {})
    given: Any = {
        "ranks": Ranks(virtual=2),
        "shuffle": True,
        "timeout": 60,
        "num_workers": 2,
    } | more
    return DataLoader(data, balance=flat_balance(**balance), **given)


def taken(loader: DataLoader[Any, Any]) -> list[Any]:
    """Return what is said of each microbatch of an epoch, and its bytes."""
    return [(repr(info), made.digest(batch)) for batch, info in loader.with_info()]


@pytest.mark.parametrize(
    "given",
    [
        {"balance": {"layout": "packed"}, "fields": {"labels", "pixel_values"}},
        {"collate_fn": made.as_list, "persistent_workers": True},
    ],
)
def test_batches_are_those_of_a_loop_on_its_own(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made.Augmented(COUNT)
    shared = loader(data, **given)
    found = [taken(shared), taken(shared)]
    shared.close()
    monkeypatch.undo()
    local = loader(data, **given)
    assert found == [taken(local), taken(local)]
    local.close()


@dataclass
class Box:
    """A batch that no network would carry."""

    content: set[int]


@dataclass
class Boxes:
    """Collates numbers, but for a while no 13."""

    gate: Path

    def __call__(self, numbers: list[int]) -> Box:
        """Return a box."""
        if 13 in numbers and not self.gate.exists():
            raise KeyError("13 is missing")
        return Box({*numbers})


def test_what_collating_raises_comes_with_its_traceback_and_the_batch_comes_again(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    # One worker makes whole batches; of parts, which several share at first, a trainer makes them.
    costs = {"tokens": [1] * COUNT}
    made = loader(range(COUNT), collate_fn=Boxes(gate), cost=costs, num_workers=1)
    batches, found = iter(made), set[int]()
    errors = list[str]()
    while True:
        try:
            found |= next(batches).content
        except LoaderError as error:
            errors.append(str(error))
            if len(errors) == 2:
                gate.touch()
        except StopIteration:
            break
    made.close()
    assert found == {*range(COUNT)}
    assert len(errors) == 2
    assert all("in __call__" in error for error in errors)
    assert all("KeyError: '13 is missing'" in error for error in errors)
