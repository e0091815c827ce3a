"""`time_ns`: what tokens, pairs of attention, tiles and patches take, from a configuration."""

from collections.abc import Mapping
from typing import Any

# A forward, and a backward of twice its operations.
_PASSES = 3
_FLOPS_OF_MULTIPLY_ADD = 2
# A patch attends to all patches of its image: 1024, as 448 x 448 pixels are for Qwen2.5-VL.
IMAGE_PATCHES = 1024
_INNER = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
# Of these an MLP has a gate, a third matrix; Gemma's has one with a GELU.
_GATED = ("silu", "swish")
_TEXT = ("text_config", "llm_config", "language_config")


def time_ns(config: Any) -> dict[str, int]:
    """Return the times that `Balance(work=)` takes, for a model: give its `model.config`.

    Operations of forward and backward at one a nanosecond (10^9 a second): whole numbers, of which
    only the ratios matter to a plan. Names: "tokens"; "attention_pairs", of every position with
    every one, half as many where flash attention leaves out what comes later; and, of a
    vision_config, "tiles" where images have one size, "patches" where they have any (Qwen-VL,
    Pixtral), as those of an image of IMAGE_PATCHES. config: an object or a mapping
    with Hugging Face's names (hidden_size, num_hidden_layers, ...); only those experts count that
    a token is sent to. After Narayanan et al. (2021): a multiply-add is two operations, a backward
    two forwards. Raises ValueError for a configuration without these names.

    >>> shape = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 16}
    >>> time_ns({**shape, "vocab_size": 100})
    {'tokens': 10944, 'attention_pairs': 192}
    """
    text = next((t for name in _TEXT if (t := _get(config, name)) is not None), config)
    per_token, per_pair = _count_layer_multiply_adds(text)
    layers = int(_needed(text, "num_hidden_layers"))
    output_weights = int(_get(text, "vocab_size") or 0) * int(_needed(text, "hidden_size"))
    flops = _PASSES * _FLOPS_OF_MULTIPLY_ADD
    attention = str(_get(text, "_attn_implementation") or "")
    per_pair = per_pair // 2 if attention.startswith("flash") else per_pair
    times = {
        "tokens": flops * (layers * per_token + output_weights),
        "attention_pairs": max(1, flops * layers * per_pair),
    }
    vision = _get(config, "vision_config")
    if patch := _count_patch_operations(vision):
        return times | {"patches": patch}
    tile = _count_tile_operations(vision)
    return times | ({"tiles": tile} if tile else {})


def known_time_ns(config: Any) -> dict[str, int] | None:
    """Return `time_ns` of a configuration that says it is a transformer's; None of any other.

    Attention heads are what tells: layers and widths other models have, too.

    >>> known_time_ns({"hidden_size": 8, "num_hidden_layers": 2}) is None
    True
    """
    text = next((t for name in _TEXT if (t := _get(config, name)) is not None), config)
    if not isinstance(_get(text, "num_attention_heads"), int):
        return None
    try:
        return time_ns(config)
    except (ValueError, TypeError):  # some have a list, of a size for each layer
        return None


def _count_layer_multiply_adds(config: Any) -> tuple[int, int]:
    """Return the multiply-adds of a layer's forward, per token and per pair of positions."""
    # Qwen2-VL's vision_config has its own width as embed_dim; its hidden_size is the text's
    hidden = int(_get(config, "embed_dim") or _needed(config, "hidden_size"))
    heads = int(_get(config, "num_attention_heads") or 1)
    width = heads * int(_get(config, "head_dim") or hidden // heads)
    key_values = width // heads * int(_get(config, "num_key_value_heads") or heads)
    inner = next((int(value) for name in _INNER if (value := _get(config, name))), 4 * hidden)
    experts = int(_get(config, "num_experts_per_tok") or 1)
    if experts > 1 or _get(config, "moe_intermediate_size"):
        inner = experts * int(_get(config, "moe_intermediate_size") or inner)
    activation = next((v for name in _ACTIVATIONS if (v := _get(config, name))), "")
    is_gated = activation in _GATED or "gemma" in str(_get(config, "model_type") or "")
    matrices = 3 if is_gated else 2
    attention = hidden * (2 * width + 2 * key_values)
    # Queries with keys, and their weights with values.
    return attention + matrices * hidden * inner, 2 * width


def _count_tile_operations(config: Any) -> int:
    """Return the operations of an encoder's forward and backward on a tile; 0: of no one size."""
    sizes = [_get(config, name) for name in ("image_size", "patch_size", "num_hidden_layers")]
    if config is None or not all(sizes) or not _get(config, "hidden_size"):
        return 0
    side, patch = (max(s) if isinstance(s, list | tuple) else s for s in sizes[:2])
    patches = (int(side) // int(patch)) ** 2
    per_token, per_pair = _count_layer_multiply_adds(config)
    operations = patches * per_token + patches * patches * per_pair
    return _PASSES * _FLOPS_OF_MULTIPLY_ADD * int(sizes[2]) * operations


def _count_patch_operations(config: Any) -> int:
    """Return the operations of an encoder's forward and backward on a patch; 0: it takes tiles."""
    is_pixtral = _get(config, "model_type") == "pixtral"
    layers = _get(config, "depth") or _get(config, "num_hidden_layers")
    if not layers or not (is_pixtral or _get(config, "spatial_merge_size")):
        return 0
    per_token, per_pair = _count_layer_multiply_adds(config)
    # Qwen2.5-VL's layers see a window each, but for some
    side = int(_get(config, "window_size") or 0) // int(_needed(config, "patch_size"))
    whole = len(_get(config, "fullatt_block_indexes") or ()) if side else int(layers)
    seen = whole * IMAGE_PATCHES + (int(layers) - whole) * side**2
    return _PASSES * _FLOPS_OF_MULTIPLY_ADD * (int(layers) * per_token + seen * per_pair)


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _needed(config: Any, name: str) -> Any:
    value = _get(config, name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(
            f"the configuration ({type(config).__name__}) has {name} {value!r}, needed are "
            "hidden_size and num_hidden_layers as positive integers, of itself or of its "
            'text_config: give Balance(work={"tokens": ..., "attention_pairs": ...}) instead'
        )
    return value
