"""Reads models from Hugging Face's config.json, with exactly the parameters of their classes.

A family is a row in a table below: which of its matrices have biases, which norms it has, how its
MLP is made. What `config.json` leaves out, being the class's default, stands in `_DEFAULTS`. An
encoder of any resolution is taken at its `image_size`, or at 448 pixels.
"""

from dataclasses import dataclass, replace

from .encoder_configs import Config, read_encoder, take
from .model import LANGUAGE, Model, SubModel, TransformerLayer, Vocabulary


@dataclass(frozen=True, slots=True)
class _Family:
    """What a decoder's layers have. `norms`: of the width h. `qk_norm`: of a head's size each."""

    qkv_bias: bool = False
    norms: int = 2
    qk_norm: bool = False
    tied: bool = False
    latent: bool = False
    sparse: bool = False


_FAMILIES = {
    "llama": _Family(),
    "mistral": _Family(),
    "internlm2": _Family(),
    "phi3": _Family(),
    "mixtral": _Family(sparse=True),
    "qwen2": _Family(qkv_bias=True),
    "qwen2_vl_text": _Family(qkv_bias=True),
    "qwen2_5_vl_text": _Family(qkv_bias=True),
    "qwen2_moe": _Family(qkv_bias=True, sparse=True),
    "qwen3": _Family(qk_norm=True),
    "qwen3_vl_text": _Family(qk_norm=True),
    "qwen3_moe": _Family(qk_norm=True, sparse=True),
    "qwen3_vl_moe_text": _Family(qk_norm=True, sparse=True),
    "gemma": _Family(tied=True),
    "gemma2": _Family(norms=4, tied=True),
    "gemma3_text": _Family(norms=4, qk_norm=True, tied=True),
    "deepseek_v2": _Family(latent=True, sparse=True),
    "deepseek_v3": _Family(latent=True, sparse=True),
}
# The types of whole models, and of the language model in them where it is not named.
_WHOLE = {
    "llava": "llama", "llava_next": "llama", "internvl": "qwen2", "internvl_chat": "internlm2",
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text", "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text", "gemma3": "gemma3_text", "qwen2_audio": "qwen2",
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000,
    },
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    },
    "qwen2": {
        "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936,
    },
    "gemma": {"head_dim": 256}, "gemma2": {"head_dim": 256}, "gemma3_text": {"head_dim": 256},
    "qwen3": {"head_dim": 128}, "qwen3_vl_text": {"head_dim": 128},
}  # fmt: skip
NEEDED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size",
)  # fmt: skip


def read_config(config: Config, name: str = "") -> Model:
    """Return the model that a Hugging Face config.json describes.

    Raises ValueError for an unknown architecture, which says what it would have to have, and for
    fields that are missing or contradict each other.
    """
    kind = str(config.get("model_type", ""))
    name = name or str(config.get("_name_or_path") or kind)
    if kind == "whisper":
        return Model(name, (read_encoder(config), _whisper_decoder(config)), _usual(clips=1))
    if kind in _FAMILIES:
        return Model(name, (_language(config, kind),))
    if (encoder := read_encoder(config, is_required=False)) is not None:
        return Model(name, (encoder,), _usual(**{encoder.unit: 8}))
    text = config.get("text_config") or config.get("llm_config")
    inner = [config[key] for key in ("vision_config", "audio_config") if config.get(key)]
    # Older Qwen2-VL configs have the language model's fields at the top.
    if kind not in _WHOLE or not inner:
        known = ", ".join(sorted({*_FAMILIES, *_WHOLE, "whisper", "siglip", "clip", "vit"}))
        raise ValueError(
            f"architecture {kind!r} is not known ({known} are); describe "
            f'it as "model_type": "llama" with {", ".join(NEEDED)}, an encoder as "vit"'
        )
    text = {"model_type": _WHOLE[kind], **(text or config)}
    if str(text["model_type"]) not in _FAMILIES:
        text = {**text, "model_type": _WHOLE[kind]}
    if "tie_word_embeddings" in config:
        text = {**text, "tie_word_embeddings": config["tie_word_embeddings"]}
    language = _language(text, str(text["model_type"]))
    encoders = tuple(
        _joined(read_encoder(tower, of=kind), language.hidden, kind, config) for tower in inner
    )
    return Model(name, (*encoders, language), _usual(**{encoder.unit: 8 for encoder in encoders}))


def _usual(**units: int) -> tuple[tuple[str, int], ...]:
    return (("tokens", 4096), *units.items())


def _joined(encoder: SubModel, hidden: int, kind: str, config: Config) -> SubModel:
    """Return an encoder with the projector of a kind of model."""
    width, square = encoder.hidden, hidden * hidden
    projector, handed = encoder.projector, encoder.handed_tokens
    if kind in ("llava", "llava_next"):
        projector = width * hidden + square + 2 * hidden
        projector += hidden if kind == "llava_next" else 0  # image_newline
        is_cut = config.get("vision_feature_select_strategy", "default") == "default"
        handed = encoder.unit_tokens - (is_cut and encoder.name == "vision")
    elif kind in ("internvl", "internvl_chat"):
        four = round(1 / config.get("downsample_ratio", 0.5)) ** 2 * width
        projector = 2 * four + four * hidden + square + 2 * hidden
        handed = (encoder.unit_tokens - 1) * width // four
    elif kind == "gemma3":
        projector = width * hidden + width
        handed = int(config.get("mm_tokens_per_image", 256))
    elif kind == "qwen2_audio":
        projector, handed = width * hidden + hidden, encoder.unit_tokens // 2
    return replace(encoder, projector=projector, handed_tokens=handed)


def _language(config: Config, kind: str) -> SubModel:
    config = {**_DEFAULTS.get(kind, {}), **{k: v for k, v in config.items() if v is not None}}
    family = _FAMILIES[kind]
    hidden, count = take(config, "hidden_size", kind), take(config, "num_hidden_layers", kind)
    words = Vocabulary(
        hidden,
        take(config, "vocab_size", kind),
        bool(config.get("tie_word_embeddings", family.tied)),
    )
    base = _attention(config, kind, family)
    layers = tuple(_layer(base, config, kind, family, at) for at in range(count))
    return SubModel(LANGUAGE, LANGUAGE, layers, words, back=hidden)


def _attention(config: Config, kind: str, family: _Family) -> TransformerLayer:
    """Return a layer with attention and norms; its MLP is to be set."""
    hidden, heads = take(config, "hidden_size", kind), take(config, "num_attention_heads", kind)
    vectors = family.norms * hidden
    if family.latent:
        return _latent_attention(config, kind, vectors)
    shared = take(config, "num_key_value_heads", kind) if "num_key_value_heads" in config else heads
    # Heads of a size of their own need not divide the hidden size.
    if "head_dim" not in config and hidden % heads:
        raise ValueError(
            f"{kind}: hidden_size {hidden} is no multiple of {heads} heads; give head_dim"
        )
    if heads % shared:
        raise ValueError(
            f"{kind}: {heads} heads are no multiple of num_key_value_heads {shared}; give a divisor"
        )
    size = take(config, "head_dim", kind) if config.get("head_dim") else hidden // heads
    query, both = heads * size, 2 * shared * size
    if family.qkv_bias:
        vectors += query + both
    elif config.get("attention_bias") or config.get("bias"):
        vectors += query + both + hidden
    if family.qk_norm:
        vectors += 2 * size
    return TransformerLayer(
        hidden, key_values=both, query=query, matrices=3, causal=True, rms=True, vectors=vectors
    )


def _latent_attention(config: Config, kind: str, vectors: int) -> TransformerLayer:
    """Return a layer of DeepSeek's multi-head latent attention."""
    hidden, heads = take(config, "hidden_size", kind), take(config, "num_attention_heads", kind)
    latent, rope = take(config, "kv_lora_rank", kind), take(config, "qk_rope_head_dim", kind)
    nope, value = take(config, "qk_nope_head_dim", kind), take(config, "v_head_dim", kind)
    query, low = heads * (nope + rope), int(config.get("q_lora_rank") or 0)
    weights = hidden * low + low * query if low else hidden * query
    weights += hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    vectors += low + latent
    if config.get("attention_bias"):
        vectors += low + latent + rope + hidden
    return TransformerLayer(
        hidden, key_values=query + heads * value, query=query, value=heads * value,
        projections=weights, matrices=3, causal=True, rms=True, vectors=vectors,
    )  # fmt: skip


def _layer(
    base: TransformerLayer, config: Config, kind: str, family: _Family, at: int
) -> TransformerLayer:
    """Return the layer at a position, with its MLP or its experts."""
    if not family.sparse or not _is_sparse(config, kind, at):
        inner = take(config, "intermediate_size", kind)
        more = 2 * inner + base.hidden if config.get("mlp_bias") else 0
        return replace(base, inner=inner, vectors=base.vectors + more)
    # The same thing has a name in each family.
    first = ("num_experts", "n_routed_experts", "num_local_experts")
    count = next((int(config[key]) for key in first if key in config), 0)
    if not count:
        raise ValueError(f"{kind} needs num_experts (or n_routed_experts) in its config")
    inner = int(config.get("moe_intermediate_size") or take(config, "intermediate_size", kind))
    shared = int(config.get("n_shared_experts") or 0) * inner
    gate = 0
    if kind == "qwen2_moe":
        shared, gate = take(config, "shared_expert_intermediate_size", kind), base.hidden
    active = take(config, "num_experts_per_tok", kind)
    return replace(
        base, inner=inner, experts=count, active=active, shared=shared, vectors=base.vectors + gate
    )


def _is_sparse(config: Config, kind: str, at: int) -> bool:
    if kind.startswith("deepseek"):
        return bool(at >= int(config.get("first_k_dense_replace", 0)))
    if at in config.get("mlp_only_layers", ()):
        return False
    return (at + 1) % int(config.get("decoder_sparse_step", 1)) == 0


def _whisper_decoder(config: Config) -> SubModel:
    """Return Whisper's decoder: cross attention counts as if it saw the text."""
    width, inner = take(config, "d_model", "whisper"), take(config, "decoder_ffn_dim", "whisper")
    # Biases of both attentions (none for keys), of the MLP, and three norms.
    vectors = 2 * 3 * width + inner + width + 3 * 2 * width
    layer = TransformerLayer(
        width, inner, projections=8 * width * width, causal=True, vectors=vectors
    )
    layers = (layer,) * take(config, "decoder_layers", "whisper")
    words = Vocabulary(width, take(config, "vocab_size", "whisper"), tied=True)
    positions = int(config.get("max_target_positions", 448)) * width
    return SubModel(LANGUAGE, LANGUAGE, layers, words, front=positions, back=2 * width)
