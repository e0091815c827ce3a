"""One rank's part of the whole model's state, under the whole model's names.

A stage's module must name its tensors as the whole model does, such as `layers.7.up.weight`. Then
the states of all ranks together are that of the model, however it is cut: any other layout takes
from it what it needs. Of divided vocabulary layers a rank has some rows, without padding. Of
encoder layers that several ranks have, the first of them saves its copy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ..vocabulary import VocabularyShard
from .held import HeldModules, NamedParameter


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

    Raises ValueError for two tensors of one name, and for what an optimizer keeps that is neither
    of its parameter's shape nor a single number, if the parameter is divided.
    """
    model, shard = _model_state(held.saved()), held.shard
    rows: dict[str, int] = {}
    if shard is not None:
        for name, value in shard.state_dict().items():
            _refuse_second(name, model, value)
            model[name] = value
        for name, _, sharding in shard.named_rows():
            # A rank whose rows are all padding begins where the layer ends.
            rows[name] = min(sharding.start(shard.rank), sharding.size)
    if optimizer is None:
        return RankState(model, {}, (), rows)
    named = held.named_parameters()
    # A tied parameter is written under each of its names: other layouts may have the copies on
    # different ranks. The optimizer's state is saved where the parameter is.
    state = {
        name: {key: _unpadded(one, shard, key, value) for key, value in kept.items()}
        for parameter, kept in optimizer.state.items()
        for one in [_known(named, parameter)]
        for name in one.names
        if name in model
    }
    groups = tuple(
        {
            **{key: value for key, value in group.items() if key not in ("params", "param_names")},
            "names": [name for p in group["params"] for name in _known(named, p).names],
        }
        for group in optimizer.param_groups
    )
    return RankState(model, state, groups, rows)


def load_model(held: HeldModules, model: Mapping[str, Any]) -> None:
    """Load a rank's part of a whole model's state. Raises ValueError for missing names."""
    for what, start, module in held.modules():
        own = module.state_dict()
        if missing := sorted({start + name for name in own} - set(model)):
            raise ValueError(
                f"the checkpoint has no {', '.join(missing)}, which {what} has; give stages and "
                "encoders whose tensors have the names that they have in the whole model"
            )
        module.load_state_dict(
            {name: placed_as(model[start + name], old) for name, old in own.items()}
        )
    if held.shard is not None:
        held.shard.load_state_dict({name: model[name] for name, _, _ in held.shard.named_rows()})


def placed_as(value: Any, like: Any) -> Any:
    """Return a whole tensor divided as `like` is, if FSDP2 has divided that."""
    if not isinstance(like, DTensor):
        return value
    mesh = like.device_mesh
    # Every rank has the whole tensor, so none has to send its part.
    return distribute_tensor(value.to(like.device), mesh, like.placements, src_data_rank=None)


def _model_state(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    for start, module in modules:
        for name, value in module.state_dict(prefix=start).items():
            _refuse_second(name, raw, value)
            raw[name] = value
    return {name: whole(value) for name, value in raw.items()}


def whole(value: Any) -> Any:
    """Return all of a tensor that FSDP2 has divided; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _refuse_second(name: str, found: Mapping[str, Any], value: Any) -> None:
    """Raise ValueError if a name stands for another tensor already."""
    other = found.get(name)
    if not isinstance(other, Tensor) or not isinstance(value, Tensor):
        return
    if _memory(other) != _memory(value):
        raise ValueError(
            f"two tensors of this rank are called {name!r}; name a stage's tensors as in the whole "
            "model, such as layers.7.up.weight, or nobody can tell them apart in a checkpoint"
        )


def _memory(value: Tensor) -> int:
    local = value.to_local() if isinstance(value, DTensor) else value
    return local.data_ptr()


def _known(named: Mapping[int, NamedParameter], parameter: Tensor) -> NamedParameter:
    if id(parameter) not in named:
        raise ValueError(
            f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is none of this "
            "pipeline's; make the optimizer from Pipeline.parameters()"
        )
    return named[id(parameter)]


def _unpadded(one: NamedParameter, shard: VocabularyShard | None, key: str, value: Any) -> Any:
    """Return what an optimizer keeps for a parameter, without rows of padding."""
    value = whole(value)
    if one.sharding is None or shard is None or not isinstance(value, Tensor) or not value.dim():
        return value
    if value.shape != one.parameter.shape:
        raise ValueError(
            f"the optimizer keeps {key} of shape {tuple(value.shape)} for rows of {one.names[0]} "
            f"of shape {tuple(one.parameter.shape)}; other ranks cannot take their part of it. "
            "Divided layers need an optimizer that keeps a value for each weight, such as AdamW"
        )
    return value[: one.sharding.real(shard.rank)]
