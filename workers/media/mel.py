"""Log-mel spectrograms as Whisper's feature extractor makes them (Qwen2-Audio's, too).

The numbers are those of transformers' WhisperFeatureExtractor, with numpy alone: 16 kHz, a window
of 400 samples every 160, Slaney's mel scale and norm, the last frame left out, log10 cut 8 below
the largest, and scaled by 4.
"""

import functools
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

SAMPLING_RATE = 16_000
WINDOW, HOP = 400, 160
# Frames whose spectra are held at once.
BLOCK = 1 << 12
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


def mel_frames(samples: int) -> int:
    """Return the frames that `log_mel` makes of so many samples.

    >>> mel_frames(480_000), mel_frames(479)
    (3000, 2)
    """
    return samples // HOP


def log_mel(
    samples: Floats, mels: int = 80, *, pad_to: int | None = None
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return float32 (mels, samples // 160) of a sound, (samples,) at 16 kHz.

    mels: 80, or 128 for Whisper large-v3 and Qwen2-Audio. pad_to: samples up to which the sound is
    filled with silence first, 480,000 for models that take 30 seconds. Raises ValueError for a
    sound of another shape, shorter than a frame, or longer than that.
    """
    if samples.ndim != 1 or len(samples) < HOP:
        raise ValueError(
            f"log_mel takes samples (n,) of one channel, at least {HOP}; got {samples.shape}"
        )
    if pad_to is not None:
        if len(samples) > pad_to:
            raise ValueError(f"{len(samples)} samples are more than pad_to={pad_to}: cut them")
        samples = np.pad(samples, (0, pad_to - len(samples)))
    padded = np.pad(samples.astype(np.float64), WINDOW // 2, mode="reflect")
    windows = sliding_window_view(padded, WINDOW)[::HOP][: mel_frames(len(samples))]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    filters = mel_filters(mels)
    power = [
        filters @ (np.abs(np.fft.rfft(windows[at : at + BLOCK] * hann)) ** 2).T
        for at in range(0, len(windows), BLOCK)
    ]
    found = np.log10(np.concatenate(power, axis=1).clip(1e-10))
    scaled: np.ndarray[Any, np.dtype[np.float32]] = (
        (np.maximum(found, found.max() - 8) + 4) / 4
    ).astype(np.float32)
    return scaled


@functools.lru_cache(4)
def mel_filters(mels: int) -> Floats:
    """Return the triangular filters (mels, 201) from 0 to 8 kHz, of equal area (Slaney's norm)."""
    bins = np.linspace(0, SAMPLING_RATE / 2, WINDOW // 2 + 1)
    # Slaney's scale is linear up to 1 kHz (15 mel), and logarithmic above.
    top = 15 + np.log(SAMPLING_RATE / 2 / 1000) * 27 / np.log(6.4)
    points = np.linspace(0, top, mels + 2)
    high = 1000 * np.exp(np.log(6.4) / 27 * (points - 15))
    edges = np.where(points < 15, points * 200 / 3, high)
    widths = np.diff(edges)
    rising = (bins - edges[:-2, None]) / widths[:-1, None]
    falling = (edges[2:, None] - bins) / widths[1:, None]
    area = (edges[2:] - edges[:-2])[:, None] / 2
    return np.maximum(0, np.minimum(rising, falling)) / area
