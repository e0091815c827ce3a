"""Load the whole model's optimizer state into the optimizer of one rank."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..vocabulary import VocabularyShard
from .held import HeldModules, NamedParameter
from .joined import settings
from .own import RankState, placed_as


def load_optimizer(held: HeldModules, optimizer: torch.optim.Optimizer, state: RankState) -> None:
    """Load a rank's part of `state`, of which `rows` is empty.

    Raises ValueError if a group of the optimizer has parameters of several saved groups, or of
    none.
    """
    named = held.named_parameters()
    kept: dict[int, dict[str, Any]] = {}
    groups = []
    number = 0
    for group in optimizer.param_groups:
        ids = []
        for parameter in group["params"]:
            one = named[id(parameter)]
            saved = next(
                (state.optimizer[name] for name in one.names if name in state.optimizer), {}
            )
            if saved:
                kept[number] = {key: _own(one, held.shard, value) for key, value in saved.items()}
            ids.append(number)
            number += 1
        names = [name for parameter in group["params"] for name in named[id(parameter)].names]
        groups.append({**_settings(names, group, state), "params": ids})
    optimizer.load_state_dict({"state": kept, "param_groups": groups})


def _settings(names: list[str], own: Mapping[str, Any], state: RankState) -> Mapping[str, Any]:
    """Return the saved settings of a group of parameters; those that it has, if it is empty."""
    found = {at for at, group in enumerate(state.groups) if set(names) & set(group["names"])}
    missing = set(names) - {name for group in state.groups for name in group["names"]}
    if len(found) > 1 or missing:
        what = (
            f"no settings for {', '.join(sorted(missing))}"
            if missing
            else f"parameters of this optimizer's group in groups {sorted(found)}"
        )
        raise ValueError(
            f"the checkpoint has {what}; divide parameters into the groups that were saved"
        )
    if not found:
        return {key: value for key, value in own.items() if key != "params"}
    return settings(state.groups[found.pop()])


def _own(one: NamedParameter, shard: VocabularyShard | None, value: Any) -> Any:
    """Return a rank's part of what an optimizer keeps, with zeros for rows of padding."""
    if not isinstance(value, Tensor):
        return value
    if one.sharding is not None and shard is not None and value.dim():
        return shard.take_rows(value, one.sharding)
    # A copy: optimizers change what they are given, which may be a file that is mapped.
    return placed_as(value.clone(), one.parameter) if value.dim() else value.clone()
