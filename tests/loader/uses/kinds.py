"""The three loaders that every use is tried with, and what they did, in comparable form."""

import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.utils.data as torch_data

from counterpoise import DataLoader

Make = Callable[..., Any]
Use = Callable[[Make], Any]
T = TypeVar("T")
USES: dict[str, Use] = {}


def use(name: str) -> Callable[[Use], Use]:
    """Register a use under the first column of the table in docs/reference/uses.md."""

    def register(function: Use) -> Use:
        assert name not in USES
        USES[name] = function
        return function

    return register


class Balanced(DataLoader[T]):
    """Our DataLoader with balancing: one rank, microbatches of batch_size, in the data's order."""

    def __init__(self, dataset: Any, *given: Any, shuffle: bool = False, **named: Any) -> None:
        named |= {"shuffle": shuffle, "balance": "fixed"}
        super().__init__(dataset, *given, **named)


Balanced.__name__ = "DataLoader"  # torch's errors tell the name of the user's class
LOADERS: dict[str, Make] = {
    "torch": torch_data.DataLoader,
    "plain": DataLoader,
    "balanced": Balanced,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a use returned, or how it was refused."""

    value: Any = None
    error: str = ""  # "Type: first line of the text", and the last line if there are several


def outcome(name: str, kind: str) -> Outcome:
    """Run a use with one of the loaders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores, prototypes, no accelerator
        try:
            return Outcome(value=seen(USES[name](LOADERS[kind])))
        except Exception as error:
            # or it holds the iterator, and garbage collection waits 5 s for each worker
            traceback.clear_frames(error.__traceback__)
            lines = _without_pids(str(error)).splitlines() or [""]
            text = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
            return Outcome(error=f"{type(error).__name__}: {text}")


def _without_pids(text: str) -> str:
    """Return the text without what differs from run to run: who noticed first that one died."""
    return re.sub(r"(DataLoader worker \(pid).*", r"\1", text)


def batches(loader: Any) -> list[Any]:
    """Return all batches of one loop."""
    return [seen(batch) for batch in loader]


def seen(value: Any) -> Any:
    """Return a value in a form that compares with ==: tensors by kind, type and content."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return ("nested", [seen(each) for each in value.unbind()])
        return (str(value.layout), str(value.dtype), value.to_dense().tolist())
    if isinstance(value, dict):
        return {name: seen(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [seen(each) for each in value])
    return value
