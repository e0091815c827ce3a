"""`hf_kwargs`: what a Hugging Face model's forward() is told of a packed batch.

Read in transformers 5.23. masking_utils.py finds where samples begin from positions (1, tokens)
that restart at 0, where there is no attention mask and no cache. Models with M-RoPE take positions
(3, 1, tokens) of time, height and width, which may repeat and jump inside a sample, so that nothing
can be found in them; given positions (1, tokens), some of them make three equal rows and no mask:
samples attend across their borders. All of them take a fourth row in front, the positions of the
text, and make the mask of it. Kernels of state-space models and short convolutions take seq_idx,
the number of each token's sample; their fallbacks in torch refuse it, and mix samples without it.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...workers.hf_processor.fields import NESTED

NEEDED = ("position_ids", "cu_seq_lens", "max_length")
TYPES = {"mm_token_type_ids", "token_type_ids"}
# What wraps a model and forwards to it, by the package of its class.
WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch._dynamo", "deepspeed", "accelerate")
# (tokens' type in mm_token_type_ids, the config's names of such a token, the batch's field)
VISION = (
    (1, ("image_token_id", "image_token_index"), "image_grid_thw"),
    (2, ("video_token_id", "video_token_index"), "video_grid_thw"),
)

# What _has_short_convolution has found: a walk over all modules is not for every batch.
_CONVOLVES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def hf_kwargs(batch: Mapping[str, Any], model: Any = None) -> dict[str, Any]:
    """Return what keeps the samples of a packed batch apart in a Hugging Face model's forward().

        model(input_ids=batch["input_ids"], labels=batch["labels"], **cp.hf_kwargs(batch, model))

    position_ids int64 (1, tokens), by which eager and SDPA attention find where samples begin;
    cu_seq_lens_q, cu_seq_lens_k int32 (B + 1,), max_length_q, max_length_k for flash attention; and
    use_cache=False: with the cache that models keep by default they attend across. No attention
    mask may be given beside them.

    model: the model, wrapped or not; what its family needs is given then. For M-RoPE position_ids
    (4, 1, tokens): the text's, and those that the model's own get_rope_index makes of each sample,
    or the batch's `mrope_position_ids` (3, 1, tokens). For layers with short convolutions or
    state-space scans seq_idx int32 (1, tokens). For models that take them mm_token_type_ids int64
    (1, tokens): the batch's, or made of the config's image_token_id. And every other field of the
    batch that forward() names, but what holds nothing (no sample has an image). On any device.

    Raises ValueError for a batch that is not packed, for one with grids without `model`, for
    grids that are not as many as the image tokens of the samples, and for a pack that is too long
    for `model`.
    """
    missing = [name for name in NEEDED if name not in batch]
    if missing:
        raise ValueError(
            f"the batch has no {', '.join(missing)}, only {', '.join(map(str, batch))[:200]}: give "
            "one of layout 'packed' (Balance(layout='packed') or collate_packed); a padded batch "
            "goes to the model with its attention_mask instead"
        )
    # padding between samples, for kernels that take gaps, belongs to the sample before it here
    ends, longest = batch.get("cu_seq_lens_padded", batch["cu_seq_lens"]), batch["max_length"]
    text: Tensor = batch["position_ids"]
    arguments: dict[str, Any] = {"position_ids": text, "use_cache": False}
    for side in ("q", "k"):
        arguments |= {f"cu_seq_lens_{side}": ends, f"max_length_{side}": longest}
    inner = unwrapped(model)
    if inner is None and any(name in batch for *_, name in VISION):
        raise ValueError(
            "the batch has grids of images, and models with M-RoPE make places of them, without "
            "which samples attend to each other: give hf_kwargs(batch, model)"
        )
    if inner is None:
        return arguments
    check_length(batch, inner)
    parts = (inner, getattr(inner, "model", None), getattr(inner, "thinker", None))
    owner, axes = next((part for part in parts if hasattr(part, "get_rope_index")), None), text
    if "mrope_position_ids" in batch:
        axes = batch["mrope_position_ids"].reshape(-1, 1, text.shape[1])
    elif owner is not None:
        axes = torch.cat([*_axes_by_sample(batch, inner, owner, ends.tolist())], -1)
    if axes.ndim == 3:
        arguments["position_ids"] = torch.cat([text[None], axes.to(text)])
    if _has_short_convolution(inner):
        lengths = ends.diff().to(text.device)
        numbers = torch.arange(len(lengths), device=lengths.device, dtype=torch.int32)
        arguments["seq_idx"] = numbers.repeat_interleave(lengths)[None]
    taken = inspect.signature(inner.forward).parameters
    extra = taken.keys() - {"input_ids", "labels", *NEEDED}
    fields = {k: v for k, v in batch.items() if k in extra and not holds_nothing(v)}
    if getattr(getattr(inner, "config", None), "model_type", "") in NESTED:
        for name, axes_of_images in (("pixel_values", 4), ("pixel_attention_mask", 3)):
            if name in fields and fields[name].ndim == axes_of_images:
                fields[name] = fields[name][None]
    for name in TYPES & fields.keys():
        fields[name] = fields[name].reshape(1, -1)
    if "mm_token_type_ids" in taken:
        fields["mm_token_type_ids"] = token_types(batch, inner)
    return fields | arguments


def check_length(batch: Mapping[str, Any], model: Any) -> None:
    """Raise ValueError where Llama 4 scales queries by their place in the pack, and not alone."""
    config = getattr(unwrapped(model), "config", None)
    text: Any = getattr(config, "text_config", config)
    limit, tokens = getattr(text, "floor_scale", None), batch["position_ids"].shape[-1]
    if limit and text.attn_temperature_tuning and tokens >= limit and len(batch["cu_seq_lens"]) > 2:
        raise ValueError(
            f"this pack has {tokens} tokens, and {type(model).__name__} scales queries by their "
            f'place in it from {limit} on: give Balance(budgets={{"tokens": {limit - 1}}})'
        )


def is_packed(batch: Any) -> bool:
    """Return whether a batch is what layout "packed" makes."""
    return isinstance(batch, Mapping) and all(name in batch for name in NEEDED)


def unwrapped(model: Any) -> Any:
    """Return the model inside DDP, FSDP, DeepSpeed, torch.compile and adapters of peft."""
    model = unwrap_parallelism(model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def unwrap_parallelism(model: Any) -> Any:
    """Return the model inside DDP, FSDP, DeepSpeed and torch.compile; its adapters stay."""
    while type(model).__module__.startswith(WRAPPERS):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def _has_short_convolution(model: Any) -> bool:
    """Return whether the layers of a language model mix neighbours by a depthwise convolution.

    So do Mamba, Mamba 2, gated delta nets and LFM: what they mix across a border of samples only
    their kernels keep apart, by seq_idx.
    """
    if model not in _CONVOLVES:
        parents, names = (getattr(model, "model", None), model), ("language_model", "text_model")
        parts = (getattr(parent, name, None) for parent in parents for name in names)
        text = next((part for part in parts if isinstance(part, nn.Module)), model)
        convolutions = (module for module in text.modules() if isinstance(module, nn.Conv1d))
        _CONVOLVES[model] = any(conv.groups == conv.in_channels > 1 for conv in convolutions)
    return _CONVOLVES[model]


def holds_nothing(value: Any) -> bool:
    """Return whether a field is a tensor of no elements: of no images, on which encoders fail."""
    return isinstance(value, Tensor) and not value.numel()


def _axes_by_sample(
    batch: Mapping[str, Any], model: Any, owner: Any, ends: list[int]
) -> Iterator[Tensor]:
    """Yield each sample's positions (axes, 1, its tokens), by the model's get_rope_index."""
    # Grids have no owner: a sample takes rows until they make as many patches as it has room for.
    ids, types = batch["input_ids"], token_types(batch, model)
    taken = inspect.signature(owner.get_rope_index).parameters
    grids = {name: batch.get(name) for *_, name in VISION}
    rows = {name: iter([] if grid is None else grid.tolist()) for name, grid in grids.items()}
    seconds = batch.get("second_per_grid_ts")
    for begin, end in pairwise(ends):
        sample_ids, sample_types = ids[:, begin:end], types[:, begin:end]
        arguments: dict[str, Any] = {"input_ids": sample_ids, "mm_token_type_ids": sample_types}
        arguments["attention_mask"] = torch.ones_like(sample_ids)
        for kind, _, name in VISION:
            left = patches = int((sample_types == kind).sum()) * merge_size(model) ** 2
            sample_rows = list[list[int]]()
            while left > 0 and (row := next(rows[name], None)) is not None:
                sample_rows.append(row)
                left -= math.prod(row)
            if left:
                raise ValueError(
                    f"a sample of {end - begin} tokens has placeholders for {patches} patches, and "
                    f"{name} does not divide so: give one row (t, h, w) for each image or video, "
                    "in the order of the samples, and one placeholder token for each patch of the "
                    "merged grid"
                )
            if sample_rows:
                arguments[name] = torch.tensor(sample_rows, device=ids.device)
            if sample_rows and name == "video_grid_thw" and seconds is not None:
                arguments["second_per_grid_ts"] = seconds[: len(sample_rows)]
                seconds = seconds[len(sample_rows) :]
        axes, _ = owner.get_rope_index(**{k: v for k, v in arguments.items() if k in taken})
        yield axes


def token_types(batch: Mapping[str, Any], model: Any) -> Tensor:
    """Return int64 (1, tokens): 0 for text, 1 for tokens of images, 2 for those of videos."""
    ids: Tensor = batch["input_ids"]
    known = batch.get("mm_token_type_ids")
    if known is not None:
        return known.reshape(1, -1).to(ids)  # type: ignore[no-any-return]
    types = torch.zeros_like(ids)
    config = getattr(model, "config", None)
    for kind, names, _ in VISION:
        token = next((t for name in names if (t := getattr(config, name, None))), None)
        if token is not None:
            types[ids == token] = kind
    return types


def merge_size(model: Any) -> int:
    """Return how many patches a side are merged to one token of the language model."""
    vision = getattr(model.config, "vision_config", model.config)
    sizes = (getattr(config, "spatial_merge_size", None) for config in (vision, model.config))
    return next((int(size) for size in sizes if size), 1)
