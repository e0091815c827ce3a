"""The state of the whole model under its own names: one rank's part, and all parts together.

A stage's module must name its tensors as the whole model does, such as `layers.7.up.weight`. Then
the states of all ranks together are that of the model, however it is cut. Of divided vocabulary
layers a rank has some rows, without padding; of encoder layers that several ranks have, the first
of them saves its copy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from .gradients import local_part
from .vocabulary.shard import Sharding, VocabularyShard


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """A parameter, all its names in the whole model, and how its rows are divided, if they are."""

    parameter: nn.Parameter
    names: tuple[str, ...]
    sharding: Sharding | None = None


@dataclass(frozen=True, slots=True)
class HeldModules:
    """The modules of one rank.

    `stages`: by number; they name their tensors as the whole model does. `shard`: of the vocabulary
    layers. `layers`: of encoders, and a generator, after what stands before their tensors' names.
    `elsewhere`: those of them that another rank saves, which has a copy.
    """

    stages: Mapping[int, nn.Module] = field(default_factory=dict)
    shard: VocabularyShard | None = None
    layers: Sequence[tuple[str, nn.Module]] = ()
    elsewhere: frozenset[str] = frozenset()

    def modules(self) -> Iterator[tuple[str, str, nn.Module]]:
        """Yield what each stage or layer is called, what its tensors' names begin with, and it."""
        for stage, module in self.stages.items():
            yield f"stage {stage}", "", module
        for name, module in self.layers:
            yield f"the layer {name}", f"{name}.", module

    def called(self) -> dict[str, nn.Parameter]:
        """Return the parameters by what errors call them."""
        parameters = {
            f"{name} of {label}": parameter
            for label, _, module in self.modules()
            for name, parameter in module.named_parameters()
        }
        rows = {} if self.shard is None else dict(self.shard.named_parameters())
        return parameters | {f"{name} of the vocabulary": p for name, p in rows.items()}

    def saved(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield what this rank saves: what the tensors' names begin with, and their module."""
        yield from (("", module) for module in self.stages.values())
        yield from ((f"{n}.", m) for n, m in self.layers if n not in self.elsewhere)

    def named_parameters(self) -> dict[int, NamedParameter]:
        """Return the parameters by their `id`. A tied one has several names."""
        by_id: dict[int, NamedParameter] = {}
        for name, parameter, sharding in self._parameters():
            before = by_id.get(id(parameter))
            names = (*before.names, name) if before is not None else (name,)
            by_id[id(parameter)] = NamedParameter(parameter, tuple(dict.fromkeys(names)), sharding)
        return by_id

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter, Sharding | None]]:
        for _, start, module in self.modules():
            for name, parameter in module.named_parameters(remove_duplicate=False):
                yield start + name, parameter, None
        if self.shard is not None:
            yield from self.shard.named_rows()


@dataclass(frozen=True, slots=True)
class RankState:
    """A rank's part of a checkpoint, or with `rows` empty, all of it.

    `model`: tensors by name. `optimizer`: by parameter's name, what the optimizer keeps for it.
    `groups`: the optimizer's settings, with the names of each group's parameters. `rows`: the first
    row of each name of which this is only a part.
    """

    model: Mapping[str, Any]
    optimizer: Mapping[str, Mapping[str, Any]]
    groups: tuple[Mapping[str, Any], ...]
    rows: Mapping[str, int]


def own_state(held: HeldModules, optimizer: torch.optim.Optimizer | None) -> RankState:
    """Return a rank's state; with stages that FSDP2 shards, all ranks of their group call this.

    Raises ValueError for two tensors of one name, and for an optimizer that cannot be divided.
    """
    raw: dict[str, Any] = {}
    for start, module in held.saved():
        for name, value in module.state_dict(prefix=start).items():
            _refuse_second(name, raw, value)
            raw[name] = value
    model = {name: whole(value) for name, value in raw.items()}
    rows: dict[str, int] = {}
    if held.shard is not None:
        for name, parameter, sharding in held.shard.named_rows():
            real_rows = parameter.detach()[: sharding.real]
            _refuse_second(name, model, real_rows)
            model[name] = real_rows
            # A rank whose rows are all padding begins where the layer ends.
            rows[name] = min(sharding.start, sharding.size)
    if optimizer is None:
        return RankState(model, {}, (), rows)
    by_id = held.named_parameters()
    # A tied parameter is written under each of its names: other layouts may have the copies on
    # different ranks. The optimizer's state is saved where the parameter is.
    state = {
        name: {key: _unpadded(named, key, value) for key, value in tensors.items()}
        for parameter, tensors in optimizer.state.items()
        for named in [_known(by_id, parameter)]
        for name in named.names
        if name in model
    }
    groups = tuple(
        {
            **{key: value for key, value in group.items() if key not in ("params", "param_names")},
            "names": [name for p in group["params"] for name in _known(by_id, p).names],
        }
        for group in optimizer.param_groups
    )
    return RankState(model, state, groups, rows)


def names_taken(held: HeldModules, model: Mapping[str, Any]) -> frozenset[str]:
    """Return what a rank takes of a whole model's state. Raises ValueError if it does not fit."""
    names: set[str] = set()
    for label, start, module in held.modules():
        names |= _fitting(label, {start + n: v for n, v in module.state_dict().items()}, model)
    if held.shard is not None:
        rows = {
            n: p.new_empty(()).expand(s.size, *p.shape[1:]) for n, p, s in held.shard.named_rows()
        }
        names |= _fitting("the vocabulary", rows, model)
    return frozenset(names)


def _fitting(label: str, tensors: Mapping[str, Any], model: Mapping[str, Any]) -> set[str]:
    """Return the names of tensors. Raises ValueError for those that are not in the model so."""
    if missing := sorted(set(tensors) - set(model)):
        raise ValueError(
            f"the checkpoint has no {', '.join(missing)}, which {label} has; give stages and "
            "encoders whose tensors have the names that they have in the whole model"
        )
    for name, value in tensors.items():
        saved = model[name]
        both = isinstance(value, Tensor) and isinstance(saved, Tensor)
        if both and value.shape != saved.shape:
            raise ValueError(
                f"the checkpoint has {name} of shape {tuple(saved.shape)}, {label} of "
                f"{tuple(value.shape)}; make the model that was saved"
            )
    return set(tensors)


def load_model(held: HeldModules, model: Mapping[str, Any]) -> None:
    """Load a rank's part of a whole model's state. Raises ValueError if it does not fit."""
    names_taken(held, model)
    for _, start, module in held.modules():
        tensors = module.state_dict()
        module.load_state_dict(
            {name: placed_as(model[start + name], old) for name, old in tensors.items()}
        )
    if held.shard is not None:
        with torch.no_grad():
            for name, parameter, sharding in held.shard.named_rows():
                parameter.copy_(sharding.take(model[name]))


def placed_as(value: Any, like: Any) -> Any:
    """Return a whole tensor divided as `like` is, if FSDP2 has divided that."""
    if not isinstance(like, DTensor):
        return value
    mesh = like.device_mesh
    # Every rank has the whole tensor, so none has to send its part.
    return distribute_tensor(value.to(like.device), mesh, like.placements, src_data_rank=None)


def whole(value: Any) -> Any:
    """Return all of a tensor that FSDP2 has divided; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _refuse_second(name: str, tensors: Mapping[str, Any], value: Any) -> None:
    """Raise ValueError if a name stands for another tensor already."""
    earlier = tensors.get(name)
    if not isinstance(earlier, Tensor) or not isinstance(value, Tensor):
        return
    if local_part(earlier).data_ptr() != local_part(value).data_ptr():
        raise ValueError(
            f"two tensors of this rank are called {name!r}; name a stage's tensors as in the whole "
            "model, such as layers.7.up.weight, or a checkpoint cannot tell them apart"
        )


def _known(named: Mapping[int, NamedParameter], parameter: Tensor) -> NamedParameter:
    if id(parameter) not in named:
        raise ValueError(
            f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is none of this "
            "pipeline's; make the optimizer from Pipeline.parameters()"
        )
    return named[id(parameter)]


def _unpadded(named: NamedParameter, key: str, value: Any) -> Any:
    """Return what an optimizer keeps for a parameter, without rows of padding."""
    value = whole(value)
    if named.sharding is None or not isinstance(value, Tensor) or not value.dim():
        return value
    if value.shape != named.parameter.shape:
        raise ValueError(
            f"the optimizer keeps {key} of shape {tuple(value.shape)} for rows of {named.names[0]} "
            f"of shape {tuple(named.parameter.shape)}; other ranks cannot take their part of it. "
            "Divided layers need an optimizer that keeps a value for each weight, such as AdamW"
        )
    return value[: named.sharding.real]


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
        states = [part.optimizer.get(name, {}) for part in parts]
        # What an optimizer keeps for a divided layer is divided like the layer's rows.
        keys = dict.fromkeys(key for state in states for key in state)
        first_rows = starts.get(name, [None] * len(parts))
        optimizer[name] = {
            key: _join(
                f"{key} of {name}",
                [(state.get(key), at) for state, at in zip(states, first_rows, strict=True)],
            )
            for key in keys
        }
    return RankState(model, optimizer, _groups(parts), {})


def _names(parts: Iterable[RankState], field: str) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in getattr(part, field)))


def _join(name: str, pieces: Sequence[tuple[Any, int | None]]) -> Any:
    """Return one value of those that ranks have, each with its first row if it is a part."""
    there = [(value, at) for value, at in pieces if value is not None]
    values = [value for value, _ in there]
    # An optimizer's step count is a tensor without dimensions, the same on all ranks.
    divided = [
        (at, value)
        for value, at in there
        if at is not None and isinstance(value, Tensor) and value.dim() > 0
    ]
    if not divided:
        if any(not same(values[0], value) for value in values[1:]):
            raise ValueError(
                f"ranks have different values of {name!r}; name the tensors of stages as in the "
                "whole model, and say which parameters ranks share (StageModules(..., shared=...))"
            )
        return values[0]
    divided.sort(key=lambda item: item[0])
    # Rows of a missing rank would be zeros without an error, so each part begins where the one
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


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal, tensors bit by bit."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and torch.equal(left, right)
    return bool(left == right)


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
            theirs = settings(group)
            if keys := [key for key in first if not same(first[key], theirs.get(key))]:
                raise ValueError(
                    f"ranks have different values of {', '.join(keys)} in group {number} of their "
                    "optimizers; give them the same"
                )
        names = dict.fromkeys(name for group in groups for name in group["names"])
        joined.append({**first, "names": list(names)})
    return tuple(joined)


def load_optimizer(held: HeldModules, optimizer: torch.optim.Optimizer, state: RankState) -> None:
    """Load a rank's part of a whole state. Raises ValueError for other groups of parameters."""
    by_id = held.named_parameters()
    states: dict[int, dict[str, Any]] = {}
    groups = []
    number = 0
    for group in optimizer.param_groups:
        ids = []
        for parameter in group["params"]:
            named = by_id[id(parameter)]
            saved = next((state.optimizer[n] for n in named.names if n in state.optimizer), {})
            if saved:
                states[number] = {key: _take_part(named, value) for key, value in saved.items()}
            ids.append(number)
            number += 1
        names = [name for parameter in group["params"] for name in by_id[id(parameter)].names]
        groups.append({**_settings(names, group, state), "params": ids})
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _settings(names: list[str], group: Mapping[str, Any], state: RankState) -> Mapping[str, Any]:
    """Return the saved settings of a group of parameters; those that it has, if it is empty."""
    numbers = {at for at, saved in enumerate(state.groups) if set(names) & set(saved["names"])}
    missing = set(names) - {name for saved in state.groups for name in saved["names"]}
    if len(numbers) > 1 or missing:
        mismatch = (
            f"no settings for {', '.join(sorted(missing))}"
            if missing
            else f"parameters of this optimizer's group in groups {sorted(numbers)}"
        )
        raise ValueError(
            f"the checkpoint has {mismatch}; divide parameters into the groups that were saved"
        )
    if not numbers:
        return {key: value for key, value in group.items() if key != "params"}
    return settings(state.groups[numbers.pop()])


def _take_part(named: NamedParameter, value: Any) -> Any:
    """Return a rank's part of what an optimizer keeps, with zeros for rows of padding."""
    if not isinstance(value, Tensor):
        return value
    if named.sharding is not None and value.dim():
        return named.sharding.take(value)
    # A copy: optimizers change what they are given, which may be a file that is mapped.
    return placed_as(value.clone(), named.parameter) if value.dim() else value.clone()
