"""The causal language models that are known, by their config's model_type."""

from .description import DecoderFamily

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
