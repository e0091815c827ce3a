"""Encoder-decoders are told nothing of where packed samples end."""

import pytest

from counterpoise.loader.models.proof import check_packing

transformers = pytest.importorskip("transformers")


def test_packed_encoder_decoder_is_refused_with_what_to_do() -> None:
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    model = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(ValueError, match=r'encoder-decoder.*Balance\(layout="padded"\)'):
        check_packing(model)
