"""GPT-NeoX and Pythia."""

from .description import DecoderFamily

FAMILIES = {
    "gpt_neox": DecoderFamily(
        base="gpt_neox", words="embed_in", dropout="emb_dropout", norm="final_layer_norm"
    )
}
