"""A small model of the same class, on which the stages of a large one are checked.

What a forward does between its modules follows from its class and its config: multipliers, caps,
kinds of layers, ties. So a model that no rank has whole is compared in a narrow copy with few
layers, in which all of these are the same.
"""

import copy
from typing import Any

import torch
from torch import nn

from ..pretrained.making import initialise_unloaded, materialise

_LAYERS, _HEADS, _WORDS, _WIDTH = 4, 2, 512, 64


def small_config(config: Any) -> Any:
    """Return a config with few layers of each kind, two heads and few words.

    The size of a head stays, on which rotary embeddings depend, and so do numbers of experts.
    """
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"  # others may need a device
    text = config.get_text_config()
    layers, heads = text.num_hidden_layers, text.num_attention_heads
    lists = {n: v for n, v in vars(text).items() if isinstance(v, list) and len(v) == layers}
    firsts = (kinds.index(kind) for kinds in lists.values() for kind in kinds)
    dense = getattr(text, "first_k_dense_replace", None) or 0
    count = min(layers, max(_LAYERS, dense + 1, *(first + 1 for first in firsts)))
    few = min(heads, _HEADS)
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    changes: dict[str, Any] = {name: kinds[:count] for name, kinds in lists.items()}
    changes |= {"num_hidden_layers": count, "num_attention_heads": few, "hidden_size": few * size}
    if (groups := getattr(text, "num_key_value_heads", None)) is not None:
        changes["num_key_value_heads"] = few if groups == heads else 1
    for name, value in vars(text).items():
        if isinstance(value, int) and ("intermediate_size" in name or name == "n_inner"):
            changes[name] = min(value, _WIDTH)
        if name.endswith("token_id") and isinstance(value, int) and value >= _WORDS:
            changes[name] = None
    changes["vocab_size"] = min(text.vocab_size, _WORDS)
    for name, value in changes.items():
        setattr(text, name, value)
    return config


def small_model(model: nn.Module, config: Any) -> nn.Module:
    """Return a model of the same class on the meta device. Raises ValueError if none is made.

    `config`: its own; None for a small one like the model's.
    """
    try:
        config = small_config(model.config) if config is None else config
        with torch.device("meta"):
            return type(model)(config)
    except Exception as error:
        raise ValueError(
            f"cannot make a small {type(model).__name__} to check the stages with "
            f"({type(error).__name__}: {error}); give check= a config of few and narrow layers, or "
            "check=False for none"
        ) from error


def fill(model: nn.Module, names: list[str]) -> None:
    """Make the modules of these names of a model, with values that are drawn."""
    units = {name: model.get_submodule(name) for name in names}
    materialise(units, torch.device("cpu"))
    initialise_unloaded(model, units, 0)
