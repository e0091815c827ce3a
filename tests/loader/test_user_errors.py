"""An error of the user's code keeps its type and its traceback under balance, wherever it is."""

import traceback
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import counterpoise as cp
from counterpoise.workers import Probe


class MarkedError(KeyError):
    """An error that needs two arguments, as pickle does not know."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name)
        self.number = number


class Words(Dataset[Any]):
    def __init__(self, error: Any = None) -> None:
        self.error = error

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        row = {"text": "x"} if index == 17 else {"caption": "y"}
        if index == 17 and self.error is not None:
            raise self.error  # a line of the user's
        row["caption"]  # a line of the user's
        return {"input_ids": torch.arange(1 + index % 5)}


class Probed(Words):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": torch.arange(1 + index % 5)}

    def probe(self, index: int) -> Probe:
        Words.__getitem__(self, index)
        return Probe(str(index), {"tokens": 1 + index % 5})


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (Words()[index] for index in range(24))


def lengths(sample: Any) -> dict[str, int]:
    return {"tokens": len(sample["input_ids"])}


def cost(sample: Any) -> dict[str, int]:
    if len(sample["input_ids"]) == 4:
        sample["caption"]  # a line of the user's
    return {"tokens": len(sample["input_ids"])}


def collate(samples: list[Any]) -> Any:
    if any(len(each["input_ids"]) == 4 for each in samples):
        samples[0]["caption"]  # a line of the user's
    return samples


TABLE = {"tokens": [1 + n % 5 for n in range(24)]}
WAYS: dict[str, dict[str, Any]] = {
    "load": {"dataset": Words(), "cost": TABLE},
    "load to measure": {"dataset": Words(), "cost": lengths},
    "probe": {"dataset": Probed()},
    "cost": {"dataset": [{"input_ids": torch.arange(1 + n % 5)} for n in range(24)], "cost": cost},
    "collate": {
        "dataset": [{"input_ids": torch.arange(1 + n % 5)} for n in range(24)],
        "cost": TABLE,
        "collate_fn": collate,
    },
    "stream": {"dataset": Stream(), "cost": cost},
}


def raised(workers: int, **given: Any) -> Exception:
    options: dict[str, Any] = {"collate_fn": list, "num_workers": workers} | given
    if isinstance(given["dataset"], IterableDataset):
        options["balance"] = cp.Balance(budgets={"tokens": 60}, accumulate=1)
    else:
        options |= {"shuffle": True, "balance": "fixed", "batch_size": 4}
    loader: Any = cp.DataLoader(**options)
    with pytest.raises((KeyError, RuntimeError)) as caught:
        list(loader)
    loader.close()
    return caught.value


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_an_error_keeps_its_type_and_its_line(way: str, workers: int) -> None:
    error = raised(workers, **WAYS[way])
    assert isinstance(error, KeyError)
    assert "a line of the user's" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("workers", [0, 1])
def test_it_is_told_of_which_sample_it_is(workers: int) -> None:
    error = raised(workers, dataset=Words(), cost=TABLE)
    assert error.args == ("caption",)
    assert error.__notes__ == ["sample '17': KeyError: 'caption'"]


def test_one_that_cannot_be_sent_is_a_runtime_error_with_its_line() -> None:
    error = raised(1, dataset=Words(MarkedError("a", 1)), cost=TABLE)
    assert type(error) is RuntimeError
    assert "MarkedError: 'a'" in str(error)
    assert "a line of the user's" in "".join(traceback.format_exception(error))
