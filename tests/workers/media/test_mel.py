"""Log-mel frames are those of transformers' WhisperFeatureExtractor, which models are fed with."""

from typing import Any

import numpy as np
import pytest

from counterpoise.workers.media import log_mel, mel_frames
from counterpoise.workers.media.mel import BLOCK, HOP, mel_filters

transformers = pytest.importorskip("transformers")


def sound(samples: int) -> np.ndarray:
    return np.random.default_rng(samples).normal(0, 0.1, samples).astype(np.float32)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("samples", [201, 16_077, 480_000])
def test_frames_are_whispers(samples: int, mels: int) -> None:
    extractor: Any = transformers.WhisperFeatureExtractor(feature_size=mels)
    for padding, pad_to in (("longest", None), ("max_length", 480_000)):
        given = extractor(
            sound(samples), sampling_rate=16_000, padding=padding, return_tensors="np"
        )
        expected = given.input_features[0]
        found = log_mel(sound(samples), mels, pad_to=pad_to)
        assert found.shape == expected.shape == (mels, mel_frames(pad_to or samples))
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < 1e-4


def test_filters_are_slaneys() -> None:
    from transformers.audio_utils import mel_filter_bank

    for mels in (40, 80, 128):
        expected = mel_filter_bank(201, mels, 0.0, 8000.0, 16_000, "slaney", "slaney")
        assert np.abs(mel_filters(mels) - expected.T).max() < 1e-12


def test_blocks_do_not_show() -> None:
    samples = sound((BLOCK + 9) * HOP)
    whole = log_mel(samples)
    assert whole.shape == (80, BLOCK + 9)
    later = log_mel(samples[100 * HOP :])
    assert np.abs(whole[:, 110:] - later[:, 10:]).max() < 0.1  # another maximum, nothing else


@pytest.mark.parametrize("shape", [(2, 900), (159,), (0,)])
def test_sounds_that_have_no_frame_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="log_mel takes samples"):
        log_mel(np.zeros(shape, np.float32))


def test_sounds_that_are_too_long_are_not_cut() -> None:
    with pytest.raises(ValueError, match="161 samples are more than pad_to=160"):
        log_mel(np.zeros(161, np.float32), pad_to=160)
