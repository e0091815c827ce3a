"""Reads encoders from Hugging Face configs: image towers, and audio."""

from collections.abc import Callable, Mapping
from typing import Any

from .model import ENCODER, SubModel, TransformerLayer

Config = Mapping[str, Any]
# Pixels of an image for encoders that take any.
USUAL_PIXELS = 448


def take(config: Config, name: str, kind: str) -> int:
    """Return a field, a whole number of 1 or more. Raises ValueError that names it."""
    value = config.get(name)
    if type(value) is not int or value < 1:
        fault = "is missing" if value is None else f"is {value!r}"
        raise ValueError(f"{kind} needs {name}, a whole number of 1 or more: it {fault}")
    return value


def read_encoder(config: Config, *, of: str = "", is_required: bool = True) -> Any:
    """Return the encoder of a config, `of` a whole model of this type.

    None for an unknown architecture, or ValueError if `is_required`.
    """
    kind = str(config.get("model_type", ""))
    if of in _OF and kind in ("", of):
        kind = _OF[of]
    if kind in _READERS:
        return _READERS[kind](config, kind)
    if is_required:
        raise ValueError(
            f"encoder {kind!r} is not known ({', '.join(_READERS)} are); describe it as "
            '"model_type": "vit" with hidden_size, intermediate_size, num_hidden_layers, '
            "image_size, patch_size"
        )
    return None


def _side(config: Config, name: str, kind: str, usual: int) -> int:
    """Return a side, a field that is a number or two of them; the usual one if it is left out."""
    value = config.get(name, usual)
    return take({name: value[0] if isinstance(value, list) and value else value}, name, kind)


def _tower(config: Config, kind: str) -> SubModel:
    """Return a ViT of a fixed resolution: CLIP, SigLIP, ViT, InternViT in either form."""
    defaults = _DEFAULTS.get(kind, {})
    config = {**defaults, **{k: v for k, v in config.items() if v is not None}}
    if "vision_config" in config:
        config = {**defaults, **config["vision_config"]}
    width, inner = take(config, "hidden_size", kind), take(config, "intermediate_size", kind)
    side, patch = _side(config, "image_size", kind, 224), _side(config, "patch_size", kind, 16)
    if patch > side:
        raise ValueError(f"{kind}: patch_size {patch} is above image_size {side}; give a smaller")
    patches = (side // patch) ** 2
    first = 0 if kind.startswith("siglip") else 1
    is_intern = kind in ("intern_vit_6b", "internvl_vision")
    norm = width if config.get("norm_type") == "rms_norm" else 2 * width
    has_bias = bool(config.get("attention_bias" if kind == "internvl_vision" else "qkv_bias", True))
    vectors = 3 * width * has_bias + width + inner + width + 2 * norm
    if is_intern:
        vectors += 2 * width  # layer scales
        has_norms = config.get("use_qk_norm") or config.get("qk_normalization")
        vectors += 2 * width if has_norms else 0
    layer = TransformerLayer(width, inner, vectors=vectors, rms=norm == width)
    front = 3 * patch * patch * width + first * width + (patches + first) * width
    back = 0
    if kind.startswith("clip"):
        front, back = front + 2 * width, 2 * width  # norms before and after
    else:
        front += width  # the bias of the patches
    if kind.startswith(("siglip", "vit")):
        back = 2 * width
    if kind.startswith("siglip") and config.get("vision_use_head", True):
        # Pooling by attention: a probe, its attention, a norm, an MLP.
        back += width + 4 * width * (width + 1) + 2 * width + 2 * width * inner + inner + width

    if "ViTForImageClassification" in config.get("architectures", ()):
        back += (width + 1) * len(config.get("id2label", {0: 0, 1: 1}))
    elif kind == "vit":
        back += width * int(config.get("pooler_output_size") or width) + width
    return _encoder(
        [layer] * take(config, "num_hidden_layers", kind),
        front,
        back,
        patches + first,
        patches,
        side,
    )


def _qwen(config: Config, kind: str) -> SubModel:
    """Return the encoder of Qwen2-VL, 2.5 or 3, with its mergers, at the usual resolution."""
    old = kind == "qwen2_vl_vision"
    config = {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, **config}
    width = take(config, "embed_dim" if old else "hidden_size", kind)
    ratio = config.get("mlp_ratio", 4)
    inner = round(ratio * width) if old else take(config, "intermediate_size", kind)
    out = take(config, "hidden_size" if old else "out_hidden_size", kind)
    patch, times = take(config, "patch_size", kind), take(config, "temporal_patch_size", kind)
    gated = kind == "qwen2_5_vl_vision"
    norm = width if gated else 2 * width
    biases = 4 * width + (2 * inner if gated else inner) + width
    layer = TransformerLayer(width, inner, 3 if gated else 2, vectors=biases + 2 * norm, rms=gated)
    front = 3 * times * patch * patch * width
    square = take(config, "spatial_merge_size", kind) ** 2
    wide = square * width
    merger = wide * wide + wide + wide * out + out
    projector = merger + norm
    if kind == "qwen3_vl_vision":
        front += width + int(config.get("num_position_embeddings", 2304)) * width
        projector += len(config.get("deepstack_visual_indexes", ())) * (merger + 2 * wide)
    count, side = take(config, "depth", kind), USUAL_PIXELS
    tokens = (side // (patch * 2) * 2) ** 2
    return _encoder([layer] * count, front, 0, tokens, tokens // square, side, projector)


def _encoder(
    layers: list[TransformerLayer], front: int, back: int, tokens: int, handed: int, side: int,
    projector: int = 0,
) -> SubModel:  # fmt: skip
    return SubModel(
        "vision", ENCODER, tuple(layers), front=front, back=back, projector=projector,
        unit="tiles", unit_tokens=tokens, handed_tokens=handed, unit_bytes=3 * 2 * side * side,
    )  # fmt: skip


def _audio(config: Config, kind: str) -> SubModel:
    """Return Whisper's encoder: two convolutions over mel frames, then half as many tokens."""
    width, inner = take(config, "d_model", kind), take(config, "encoder_ffn_dim", kind)
    tokens, mel = int(config.get("max_source_positions", 1500)), int(config.get("num_mel_bins", 80))
    # Biases of queries, values and output, of the MLP, and two norms.
    vectors = 3 * width + inner + width + 2 * 2 * width
    front = 3 * mel * width + width + 3 * width * width + width + tokens * width
    layers = (TransformerLayer(width, inner, vectors=vectors),) * take(
        config, "encoder_layers", kind
    )
    return SubModel(
        "audio", ENCODER, layers, front=front, back=2 * width, unit="clips", unit_tokens=tokens,
        handed_tokens=tokens, unit_bytes=2 * 2 * tokens * mel,
    )  # fmt: skip


_CLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "patch_size": 32}
_SIGLIP = {**_CLIP, "patch_size": 16}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "clip": _CLIP, "clip_vision_model": _CLIP, "siglip": _SIGLIP, "siglip_vision_model": _SIGLIP,
}  # fmt: skip
_READERS: dict[str, Callable[[Config, str], SubModel]] = {
    **dict.fromkeys(
        ("clip", "clip_vision_model", "siglip", "siglip_vision_model", "vit", "intern_vit_6b",
         "internvl_vision"),
        _tower,
    ),
    **dict.fromkeys(("qwen2_vl_vision", "qwen2_5_vl_vision", "qwen3_vl_vision"), _qwen),
    **dict.fromkeys(("whisper", "qwen2_audio_encoder"), _audio),
}  # fmt: skip
# The encoder of whole models whose vision_config has another type, or the model's own.
_OF = {
    "llava": "clip_vision_model", "llava_next": "clip_vision_model",
    "gemma3": "siglip_vision_model",
    "internvl": "internvl_vision", "internvl_chat": "intern_vit_6b", "qwen2_vl": "qwen2_vl_vision",
    "qwen2_5_vl": "qwen2_5_vl_vision", "qwen3_vl": "qwen3_vl_vision",
    "qwen3_vl_moe": "qwen3_vl_vision", "qwen2_audio": "qwen2_audio_encoder",
}  # fmt: skip
