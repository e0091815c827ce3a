"""Join the states of all ranks to the whole model's, and load one rank's optimizer from it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..vocabulary.shard import VocabularyShard
from .own import HeldModules, NamedParameter, RankState, placed_as


def join_states(parts: Sequence[RankState]) -> RankState:
    """Return the whole state, from those of all ranks of a pipeline, in any order.

    Divided tensors are put together; what several ranks have must be the same bit by bit. Raises
    ValueError if it is not, if rows are missing, or if the ranks' optimizers have other settings.
    """
    if not parts:
        raise ValueError("there are no states to join; give those of all ranks of one pipeline")
    starts = {name: [part.rows.get(name) for part in parts] for name in _names(parts, "rows")}
    model = {
        name: _join(name, [(part.model.get(name), part.rows.get(name)) for part in parts])
        for name in _names(parts, "model")
    }
    optimizer = {}
    for name in _names(parts, "optimizer"):
        kept = [part.optimizer.get(name, {}) for part in parts]
        # What an optimizer keeps for a divided layer is divided like the layer's rows.
        keys = dict.fromkeys(key for one in kept for key in one)
        found = starts.get(name, [None] * len(parts))
        optimizer[name] = {
            key: _join(
                f"{key} of {name}",
                [(one.get(key), at) for one, at in zip(kept, found, strict=True)],
            )
            for key in keys
        }
    return RankState(model, optimizer, _groups(parts), {})


def _names(parts: Iterable[RankState], field: str) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in getattr(part, field)))


def _join(name: str, found: Sequence[tuple[Any, int | None]]) -> Any:
    """Return one value of those that ranks have, each with its first row if it is a part."""
    there = [(value, at) for value, at in found if value is not None]
    values = [value for value, _ in there]
    divided = [(at, value) for value, at in there if at is not None and _has_rows(value)]
    if not divided:
        if any(not same(values[0], value) for value in values[1:]):
            raise ValueError(
                f"ranks have different values of {name!r}; name the tensors of stages as in the "
                "whole model, and say which parameters ranks share (Pipeline(shared=...))"
            )
        return values[0]
    divided.sort(key=lambda item: item[0])
    # Rows of a missing rank would be zeros that nobody notices, so each part begins where the one
    # before ends.
    row = 0
    for at, value in divided:
        if at != row:
            raise ValueError(
                f"rows {row} to {at} of {name!r} are in no part; give the states of all ranks of "
                "one pipeline, each once"
            )
        row += len(value)
    return torch.cat([value for _, value in divided])


def _has_rows(value: Any) -> bool:
    # An optimizer's step count is a tensor without dimensions, the same on all ranks.
    return isinstance(value, Tensor) and value.dim() > 0


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, tensors bit by bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer group's settings, without what they are for."""
    return {key: value for key, value in group.items() if key != "names"}


def _groups(parts: Sequence[RankState]) -> tuple[Mapping[str, Any], ...]:
    counts = sorted({len(part.groups) for part in parts})
    if len(counts) > 1:
        raise ValueError(
            f"the ranks' optimizers have {' and '.join(map(str, counts))} groups of parameters; "
            "make the same groups on every rank, empty ones too"
        )
    joined = []
    for number in range(counts[0]):
        groups = [part.groups[number] for part in parts]
        first = settings(groups[0])
        # A rank that loads takes one rank's settings, so all must have the same.
        for group in groups[1:]:
            other = settings(group)
            if keys := [key for key in first if not same(first[key], other.get(key))]:
                raise ValueError(
                    f"ranks have different values of {', '.join(keys)} in group {number} of their "
                    "optimizers; give them the same"
                )
        names = dict.fromkeys(name for group in groups for name in group["names"])
        joined.append({**first, "names": list(names)})
    return tuple(joined)


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
