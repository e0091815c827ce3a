"""The leak test with a sound in each packed sample."""

from typing import Any

import pytest

pytest.importorskip("av")

from counterpoise.loader.models.proof import check_packing
from tests.workers.hf_processor.clip_families import make
from tests.workers.hf_processor.models import make_model


def test_a_model_that_mixes_sounds_is_refused() -> None:
    processor = make("qwen2_audio_short")
    model = make_model("qwen2_audio", processor)

    class Mixing(type(model)):  # type: ignore[misc]
        def forward(
            self, input_ids: Any, input_features: Any = None, feature_attention_mask: Any = None,
            **given: Any,
        ) -> Any:  # fmt: skip
            if input_features is not None:
                input_features = input_features.mean(0, keepdim=True).expand_as(input_features)
                given["feature_attention_mask"] = feature_attention_mask
            return super().forward(input_ids, input_features, **given)

    mixing = Mixing(model.config).double()
    assert check_packing(mixing).status == "exact"  # texts
    with pytest.raises(ValueError, match=r"does not keep packed samples with .* sounds\) apart"):
        check_packing(mixing, images=True)
