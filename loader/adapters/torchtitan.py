"""A data loader for torchtitan: any loader of ours behind its `BaseDataLoader`.

This module imports torchtitan, and nothing of ours imports it: torchtitan does, by

    --override.imports 'counterpoise.loader.adapters.torchtitan.dataloader={"loader": "data:make"}'

where `make` of the module `data` returns the loader. torchtitan asks for one batch a microbatch,
counts the labels that are not -100 over all microbatches and ranks of a step, divides by them, and
sums gradients: no scale_loss. It steps after `gradient_accumulation_steps` batches, and ends its
training where data end, so epochs follow each other here. Read in 0.3.0, whose batches are (B, L),
and in main of August 2026, whose batches are one row (T,).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torchtitan.config import derive, override

from .next_token import next_token_batch, repeat_epochs, shifts_labels

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:
    from torchtitan.components.dataloader import BaseDataLoader

IS_FLAT = BaseDataLoader.__module__ == "torchtitan.components.data.loader"
LEDGER = "counterpoise"


class PlannedDataLoader(BaseDataLoader):  # type: ignore[misc]
    """Hands torchtitan the batches of a loader, epoch after epoch, and its ledger as the state."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """The function that makes the loader, or "module:function".

        It is called with ranks=(rank, number of ranks) and what torchtitan's trainer gives
        (tokenizer, and sizes in tokens or rows).
        """

        loader: str | Callable[..., Any] = ""

    def __init__(
        self, config: "PlannedDataLoader.Config", *, dp_rank: int, dp_world_size: int, **more: Any
    ) -> None:
        """Make the loader; ValueError if `loader` names no function."""
        self.loader = _function(config.loader)(ranks=(dp_rank, dp_world_size), **more)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        """Yield (inputs, labels) of microbatches without end; a loader without any ends it."""
        for batch in repeat_epochs(self.loader):
            yield next_token_batch(batch, IS_FLAT, shifts_labels(self.loader))

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger under one key: it is the same on all ranks, and may go on with others.

        That of a stream is each rank's own, under a key of its own. A string, as DCP would take a
        dictionary apart.
        """
        return {self._key: json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at a ledger; an empty state is that of a checkpoint without one, and is left."""
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict[self._key]))

    @property
    def _key(self) -> str:
        balanced = getattr(self.loader, "_balanced", None)
        if balanced is None or not getattr(balanced, "ledger_per_rank", False):
            return LEDGER
        return f"{LEDGER}-{balanced.ranks[0]}"

    def close(self) -> None:
        """End the loader's processes."""
        self.loader.close()


@override(target=BaseDataLoader.Config, description="a counterpoise loader")
def dataloader(config: Any, loader: str) -> Any:
    """Return the Config that takes the place of torchtitan's own, for --override.imports."""
    return derive(config, PlannedDataLoader.Config, loader=loader)


def _function(named: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that "module:function" names."""
    if callable(named):
        return named
    module, _, name = named.partition(":")
    function = getattr(import_module(module), name, None) if module and name else None
    if not callable(function):
        raise ValueError(
            f'loader is {named!r}: give "module:function", the name of a function(ranks, '
            "**given) that returns a counterpoise.DataLoader(..., ranks=ranks)"
        )
    return function  # type: ignore[no-any-return]
