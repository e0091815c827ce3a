"""The models that are known, by their config's model_type, and adapting one.

A tile's pixels are (3, S, S); patches of Qwen-VL have grids (images, 3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .adapted import Adapted
from .description import Constants, DecoderFamily, Family, ImageFamily
from .images import ImageEncoder, ImageFeatures
from .layers import Layers, attention_kinds
from .routers import find_routers
from .towers import cut_tower

DECODERS = {
    # What is special about these is in their layers, modules or configs.
    **dict.fromkeys(
        ("llama", "stablelm", "qwen2", "qwen3", "gemma", "olmo", "olmo2", "smollm3"),
        DecoderFamily(),
    ),
    # Their routers have no loss.
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), DecoderFamily()),
    **dict.fromkeys(("qwen2_moe", "olmoe"), DecoderFamily(routers=True)),
    **dict.fromkeys(("mistral", "phi3"), DecoderFamily(window=True)),
    **dict.fromkeys(("mixtral", "qwen3_moe"), DecoderFamily(window=True, routers=True)),
    **dict.fromkeys(
        ("cohere", "cohere2"), DecoderFamily(scale_logits=lambda config: config.logit_scale)
    ),
    "gemma2": DecoderFamily(softcap=lambda config: config.final_logit_softcapping),
    "gemma3_text": DecoderFamily(
        softcap=lambda config: config.final_logit_softcapping, rotary_by_type=True
    ),
    "olmo3": DecoderFamily(rotary_by_type=True),
    "granite": DecoderFamily(
        scale_words=lambda config: config.embedding_multiplier,
        scale_logits=lambda config: 1 / config.logits_scaling,
    ),
    "phi": DecoderFamily(dropout="embed_dropout", norm="final_layernorm"),
    "gpt_neox": DecoderFamily(
        base="gpt_neox", words="embed_in", dropout="emb_dropout", norm="final_layer_norm"
    ),
    "gpt2": DecoderFamily(
        base="transformer",
        words="wte",
        positions="wpe",
        dropout="drop",
        layers="h",
        norm="ln_f",
        rotary="",
    ),
}


def _features(model: Any, *fields: Tensor) -> Tensor:
    """Return the features of all tiles or images, one after another."""
    return torch.cat([*model.get_image_features(*fields).pooler_output])


def _llava_tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile; the class token is left out by the default strategy."""
    vision = config.vision_config
    whole = config.vision_feature_select_strategy != "default"
    return {"tiles": (vision.image_size // vision.patch_size) ** 2 + whole}


def _internvl_tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile, whose patches are shuffled together."""
    vision = config.vision_config
    image, patch = (
        size if isinstance(size, int) else size[0]
        for size in (vision.image_size, vision.patch_size)
    )
    return {"tiles": int(image // patch * config.downsample_ratio) ** 2}


def _smolvlm_features(model: Any, pixel_values: Tensor, pixel_attention_mask: Tensor) -> Tensor:
    """Return the features of tiles with masks (tiles, S, S); one of zeros alone is padding."""
    # forward's tiles are those of each row of a batch; a packed one has one row
    pixels = pixel_values.view(1, -1, *pixel_values.shape[-3:])
    masks = pixel_attention_mask.view(1, -1, *pixel_attention_mask.shape[-2:])
    return _features(model, pixels, masks)


def _smolvlm_tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return {"tiles": side**2 // config.scale_factor**2}


def _qwen_tokens(config: Any) -> Callable[[Any], int]:
    """Return the function that counts the features of a microbatch, by its patches."""
    merged = config.vision_config.spatial_merge_size**2
    return lambda info: info.costs.get("patches", 0) // merged


def _stacked_features(model: Any, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
    """Return each token's feature, and beside it those that are added after layers."""
    output = model.get_image_features(pixel_values, image_grid_thw)
    features = (output.pooler_output, *output.deepstack_features)
    return torch.cat([torch.cat([*images]) for images in features], dim=-1)


_QWEN = ImageFamily(
    ("visual",),
    _features,
    _qwen_tokens,
    decoder=DecoderFamily(axes=3),
    inputs=("pixel_values", "image_grid_thw"),
    layered=cut_tower,
)
IMAGE_MODELS = {
    "llava": ImageFamily(("vision_tower", "multi_modal_projector"), _features, _llava_tokens),
    "internvl": ImageFamily(("vision_tower", "multi_modal_projector"), _features, _internvl_tokens),
    "smolvlm": ImageFamily(
        ("vision_model", "connector"),
        _smolvlm_features,
        _smolvlm_tokens,
        language="text_model",
        inputs=("pixel_values", "pixel_attention_mask"),
    ),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": replace(
        _QWEN,
        features=_stacked_features,
        stacked=lambda config: len(config.vision_config.deepstack_visual_indexes),
    ),
}


def families() -> Mapping[str, Family]:
    """Return the descriptions of all families by model_type."""
    return {**DECODERS, **IMAGE_MODELS}


def adapt(model: nn.Module, family: Family | None = None) -> Adapted:
    """Return a Hugging Face model with what its forward does between its modules.

    `model`: a causal language model, or one that takes images and text, of transformers; on the
    meta device, too. `family`: its description, for one that is none of `families()`. The model is
    not changed. Raises ValueError for a model without a description, and a description that names
    what the model does not have.

        pipe = adapt(model).pipeline(mesh, "1f1b")
    """
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", "")
    family = family or families().get(kind)
    if family is None:
        raise ValueError(_unknown(model, kind))
    if isinstance(family, DecoderFamily):
        return _adapted(model, family, config, family.base, partial(adapt, family=family))
    base: Any = _module(model, family.base, "base")
    name = f"{family.base}.{family.language}"
    text = _module(model, name, "language").config
    decoder = family.decoder or families().get(text.model_type)
    if not isinstance(decoder, DecoderFamily):
        raise ValueError(_unknown(model, text.model_type))
    # the whole model's forward has a head alone behind it
    plain = DecoderFamily()
    decoder = replace(decoder, base=name, head="lm_head", scale_logits=plain.scale_logits)
    module = ImageFeatures(base, family.encoder, family.features)
    layers: Sequence[nn.Module] = [module]
    constants: Constants | None = None
    if family.layered is not None:
        layers, constants = family.layered(module.get_submodule(*family.encoder))
    images = ImageEncoder(family, config, module, family.base, text.hidden_size, layers, constants)
    decoder, again = replace(decoder, softcap=plain.softcap), partial(adapt, family=family)
    return _adapted(model, decoder, text, name, again, images)


def _adapted(
    model: Any,
    family: DecoderFamily,
    config: Any,
    base: str,
    again: Callable[[nn.Module], Adapted],
    images: ImageEncoder | None = None,
) -> Adapted:
    inside = dict.fromkeys(("words", "positions", "dropout", "layers", "norm", "rotary"), "")
    for field in inside:
        if name := getattr(family, field):
            inside[field] = f"{base}.{name}" if base else name
            _module(model, inside[field], field)
    _module(model, family.head, "head")
    words: Any = model.get_submodule(inside["words"])
    # Gemma's embedding scales by itself, in its weight's precision
    scale = torch.tensor(getattr(words, "scalar_embed_scale", 1.0), dtype=words.weight.dtype)
    layers = Layers(
        family,
        config,
        model.get_submodule(inside["rotary"]) if inside["rotary"] else None,
        attention_kinds(family, config, len(model.get_submodule(inside["layers"]))),
        routers=find_routers(model, config.hidden_size) if family.routers else None,
        stacked=0 if images is None else images.stacked,
        scale=float(family.scale_words(config)),
    )
    return Adapted(
        model, list_name=inside["layers"], words=inside["words"],
        front=tuple(inside[part] for part in ("positions", "dropout") if inside[part]),
        norm=inside["norm"], head=family.head, layers=layers, images=images,
        positions=inside["positions"], inside=float(scale),
        logits=float(family.scale_logits(config)), softcap=family.softcap(config), again=again,
    )  # fmt: skip


def _module(model: nn.Module, name: str, field: str) -> Any:
    """Return a module of a model by name. Raises ValueError if it has none."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        inside = (name for name, _ in model.named_modules() if not any(map(str.isdigit, name)))
        known = ", ".join(name for name in inside if name)
        raise ValueError(
            f"the description says {field}={name!r}, and {type(model).__name__} has no such "
            f"module; it has {known}"
        ) from None


def _unknown(model: nn.Module, kind: str) -> str:
    return (
        f"adapt() has no description of {type(model).__name__} (model_type {kind!r}); known are "
        f"{', '.join(sorted(families()))}. Give one: adapt(model, DecoderFamily(base='model', "
        "words='embed_tokens', layers='layers', norm='norm', head='lm_head', ...)), or ImageFamily "
        "for a model with images, with what its forward does between its modules; or cut any model "
        "with split(model, plan, layers=..., first=..., last=..., call=...)"
    )
