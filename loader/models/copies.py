"""A copy of a model with few layers, to look at what it computes without touching it.

The copy has modules, buffers and configuration of its own and shares the parameters, so that it
costs no memory and has the model's own attention implementation, dtype, device and adapters. Of
layers that repeat, one of each kind is kept, at least two: what leaks in a layer of one kind leaks
in all. Parameters that are zero everywhere (LoRA's B, gates that open in training) get small values
of the copy's own, since what they multiply would not show.

Where parameters are not there to be shared (sharded by FSDP or ZeRO, on the meta device), a model
with few layers is made of the configuration instead.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

# Fewer layers than this are not worth leaving out, and of those left out this many stay.
FEW = 4
KEPT = 2
# The part of a vocabulary that stays: all of it would be most of the work of two layers.
TOKENS = 1024
# Parameters on a CPU that take longer.
LARGE = 1 << 29
# How far attention looks back: thousands of tokens, and a few in a copy.
REACHES = ("sliding_window", "sliding_window_size", "attention_chunk_size")
REACH = 4
_PLAIN = str | bool | int | float
# Attributes of a configuration that say how many layers it has.
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "decoder_layers")


def small_copies(model: nn.Module, images: bool = False) -> list[Any]:
    """Return functions that make copies, the smallest first; each may raise whatever it meets.

    images: it is to take tokens of images, which may be the last of a vocabulary.
    """
    elsewhere = ("_local_tensor", "_local_shard", "ds_id")  # FSDP2, FSDP, ZeRO-3
    if any(p.is_meta or any(hasattr(p, n) for n in elsewhere) for p in model.parameters()):
        return [lambda: _make_small(model)]
    copies = [lambda: _with_values(_shortened(_shared(model), images))]
    # whole, where a layer's leaving is not understood, and the model fits in 2 s
    if sum(p.numel() for p in model.parameters() if p.device.type == "cpu") < LARGE:
        copies.append(lambda: _with_values(_shared(model)))
    return copies


def _shared(model: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters, as it computes in training."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    shared = _settled(copy.deepcopy(model, memo))
    for module in shared.modules():
        # accelerate.prepare() leaves a forward() that calls the model itself, and not its copy
        if "_original_forward" in module.__dict__:
            module.__dict__.pop("forward", None)
    return shared


def _with_values(model: nn.Module) -> nn.Module:
    """Give values to a copy's parameters that are zero everywhere."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.flatten()[:64].any() and not parameter.any():
                noise = torch.linspace(-0.1, 0.1, parameter.numel(), device=parameter.device)
                values = noise.to(parameter.dtype).reshape(parameter.shape)
                module._parameters[name] = nn.Parameter(values, requires_grad=False)
    return model


def _settled(model: nn.Module) -> nn.Module:
    """Return a copy in training mode, without what that draws at random or has recomputed.

    What it does with far tokens is made to show in the samples of a proof.
    """
    for module in model.train().modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(module, name, 0.0)
        if "gradient_checkpointing" in vars(module):
            setattr(module, "gradient_checkpointing", False)  # noqa: B010 - no tensor, for mypy
    for part in (*model.modules(), *configurations(getattr(model, "config", None))):
        for name in REACHES:
            if isinstance(reach := getattr(part, name, None), int) and reach > REACH:
                setattr(part, name, REACH)
    return model


def in_float32(model: nn.Module) -> nn.Module:
    """Return a copy of a copy, all of it float32."""
    floats = (parameter for parameter in model.parameters() if parameter.is_floating_point())
    memo: dict[int, Any] = {id(p): nn.Parameter(p.float(), requires_grad=False) for p in floats}
    return copy.deepcopy(model, memo).float()


def _shortened(model: Any, images: bool) -> Any:
    """Leave out of a copy layers of kinds that are there already, and most of the vocabulary."""
    ends: list[tuple[str, type[nn.Module]]] = [("get_output_embeddings", nn.Linear)]
    ends += [] if images else [("get_input_embeddings", nn.Embedding)]  # their ids are anywhere
    for name, kind in ends:
        end = getattr(model, name)() if hasattr(model, name) else None
        if isinstance(end, kind):
            for part, parameter in list(end._parameters.items()):
                if parameter is not None and len(parameter) > TOKENS:
                    few = nn.Parameter(parameter[:TOKENS], requires_grad=False)
                    end._parameters[part] = few
        if isinstance(end, nn.Embedding) and (end.padding_idx or 0) >= len(end.weight):
            end.padding_idx = None
    config = getattr(model, "config", None)
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    depths = {getattr(part, n, None) for part in configurations(config) for n in DEPTHS}
    for layers in lists:
        if len(layers) < FEW or len(layers) not in depths:
            continue
        places = _one_of_each([_kind(layer) for layer in layers])
        for part in configurations(config):
            _shorten(part, len(layers), places)
        chosen = [layers[place] for place in places]
        for new, layer in enumerate(chosen):
            for module in layer.modules():
                if isinstance(getattr(module, "layer_idx", None), int):
                    setattr(module, "layer_idx", new)  # noqa: B010 - no tensor, for mypy
        # the list itself stays: others may hold it
        layers._modules.clear()
        layers.extend(chosen)
    return model


def _kind(layer: nn.Module) -> tuple[Any, ...]:
    """Return what distinguishes layers: their parts, and what is said of each but its place."""
    kinds = list[Any]()
    for name, module in layer.named_modules():
        facts = [(key, str(fact)) for key, fact in vars(module).items() if isinstance(fact, _PLAIN)]
        kinds.append((name, type(module), *sorted(f for f in facts if "idx" not in f[0])))
    return tuple(kinds)


def _one_of_each(kinds: list[Any]) -> list[int]:
    """Return the first place of each kind, in order, and the next places up to KEPT.

    >>> _one_of_each(["a", "a", "b", "a"]), _one_of_each(["a", "a", "a"])
    ([0, 2], [0, 1])
    """
    first = [place for place, kind in enumerate(kinds) if kinds.index(kind) == place]
    repeated = [place for place in range(len(kinds)) if place not in first]
    return sorted([*first, *repeated[: max(KEPT - len(first), 0)]])


def configurations(config: Any) -> list[Any]:
    """Return a configuration and those in it (text, vision, audio)."""
    if not hasattr(config, "__dict__") and not isinstance(config, Mapping):
        return []
    nested = [part for part in vars(config).values() if hasattr(part, "to_dict")]
    return [config, *(part for inner in nested for part in configurations(inner))]


def _shorten(config: Any, depth: int, places: list[int]) -> None:
    """Set a configuration of `depth` layers to those at `places` only."""
    names = [name for name in DEPTHS if getattr(config, name, None) == depth]
    if not names:
        return
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == depth:
            setattr(config, name, type(value)(value[place] for place in places))
    for name in names:
        setattr(config, name, len(places))


def _make_small(model: Any) -> nn.Module:
    """Return a new model of the same class, device, dtype and attention, with few layers."""
    if hasattr(model, "get_base_model"):
        raise ValueError("its parameters are sharded, and its adapters cannot be made anew")
    config = copy.deepcopy(model.config)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    depth = next((d for n in DEPTHS if (d := getattr(text, n, None))), 0)
    _shorten(text, depth, _one_of_each(getattr(text, "layer_types", None) or ["layer"] * depth))
    config._attn_implementation = model.config._attn_implementation
    first = next(model.parameters())
    with torch.device("cpu" if first.is_meta else first.device):
        small: nn.Module = type(model)(config)
    return _settled(small.to(first.dtype))
