"""Decodes audio files to float32 at the rate that a model takes, and says beforehand how many.

The number of samples is in the header: what is decoded is held against it. A rate is converted by
windowed sinc interpolation, the algorithm of torchaudio.functional.resample with its defaults
(sinc_interp_hann, lowpass_filter_width 6, rolloff 0.99), with torch alone.
"""

import functools
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .files import MAX_BYTES, CalledFile, Media, MediaError, check_bytes, import_library, open_media

Floats = np.ndarray[Any, np.dtype[np.float32]]
BLOCK = 1 << 16
# libsndfile's number for a length that is not known.
UNKNOWN = (1 << 63) - 1
RATES = range(1000, 1_000_000)
# Taps x phases of a filter: rates that have no common divisor would need more.
MAX_TAPS = 1 << 22
# An MP3's tag that says how long it is stands in its first frame, which is that long at most.
FIRST_FRAME = 1 << 11
MARKS = (b"Xing", b"Info", b"VBRI")
# What may follow the sound: titles, pictures of covers are before it.
TRAILER = 1 << 16


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What `decode_audio` gives of a file: samples of one channel, and their number in a second.

    channels: the file's own.
    """

    samples: int
    sampling_rate: int
    channels: int

    @property
    def seconds(self) -> float:
        """The length."""
        return self.samples / self.sampling_rate


def probe_audio(
    media: Media, sampling_rate: int | None = 16_000, *, max_bytes: int = MAX_BYTES, name: str = ""
) -> AudioInfo:
    """Return what `decode_audio` gives for the same arguments, from the header.

    An MP3 without a length in its first frame is decoded to be measured. Raises MediaError.
    """
    with _open_sound(media, sampling_rate, max_bytes, name) as (_, _, info):
        return info


def decode_audio(
    media: Media,
    sampling_rate: int | None = 16_000,
    *,
    mono: bool = True,
    max_bytes: int = MAX_BYTES,
    name: str = "",
) -> Floats:
    """Return the sound as float32 (samples,) in -1..1, the mean of its channels.

    sampling_rate: samples a second, None for the file's own; mono=False: (channels, samples).
    Raises MediaError for what is no sound, takes more than `max_bytes` to decode, or is cut off.
    """
    with _open_sound(media, sampling_rate, max_bytes, name) as (sound, frames, info):
        none = np.empty((0, 1 if mono else info.channels), np.float32)
        blocks = [block.mean(1, keepdims=True) if mono else block for block in _read_blocks(sound)]
        samples = np.concatenate([none, *blocks])
        if len(samples) != frames:
            raise MediaError(
                f"its header says {frames:,} samples, and it has {len(samples):,}: it is cut off, "
                "or damaged"
            )
        channels = np.ascontiguousarray(samples.T)
        if info.sampling_rate != sound.samplerate:
            channels = _resample(channels, sound.samplerate, info.sampling_rate)
        return channels[0] if mono else channels


@contextmanager
def _open_sound(
    media: Media, sampling_rate: int | None, max_bytes: int, name: str
) -> Iterator[tuple[Any, int, AudioInfo]]:
    """Give the sound file, at its beginning, its samples in each channel, and what they become."""
    soundfile = import_library("soundfile", "decoding audio")
    with (
        open_media(media, name, soundfile.SoundFileError) as file,
        soundfile.SoundFile(file) as sound,
    ):
        if sound.samplerate not in RATES or not 1 <= sound.channels <= 64:
            raise MediaError(
                f"{sound.channels} channels at {sound.samplerate} Hz: allowed are 1 to 64 at "
                f"{RATES.start} to {RATES.stop - 1} Hz"
            )
        if sound.frames == UNKNOWN:
            raise MediaError("its header does not say how long it is: write it again")
        frames = _count_frames(sound, file, max_bytes)
        info = _make_info(sound, frames, sampling_rate)
        nbytes = 4 * info.samples * info.channels
        check_bytes(nbytes, max_bytes, f"{info.samples:,} samples a channel")
        yield sound, frames, info


def _count_frames(sound: Any, file: CalledFile, max_bytes: int) -> int:
    """Return the samples in each channel; of an MP3 without a length by decoding it."""
    frames = int(sound.frames)
    check_bytes(4 * frames * sound.channels, max_bytes, f"{frames:,} samples a channel")
    if sound.format != "MP3" or _says_length(file):
        return frames
    frames = sum(map(len, _read_blocks(sound)))
    if file.tell() < file.seek(0, io.SEEK_END) - TRAILER:
        # libsndfile reads no further than it guesses by the first frame's bit rate.
        raise MediaError(
            "an MP3 of changing bit rate without a length (no Xing header), which cannot be read "
            "to its end: write it again, by ffmpeg -i IN.mp3 -c copy OUT.mp3"
        )
    sound.seek(0)
    return frames


def _says_length(file: CalledFile) -> bool:
    """Return whether an MP3's first frame is one that says how long the file is."""
    at = file.tell()
    file.seek(0)
    head = file.read(10)
    # An ID3 tag's size is in four bytes of seven bits.
    tag = functools.reduce(lambda size, byte: size << 7 | byte, head[6:10], 0)
    file.seek(10 + tag if head.startswith(b"ID3") else 0)
    first = file.read(FIRST_FRAME)
    file.seek(at)
    return any(mark in first for mark in MARKS)


def _read_blocks(sound: Any) -> Iterator[Floats]:
    """Yield a sound's samples (n, channels): a header that lies makes nothing be allocated."""
    while len(block := sound.read(BLOCK, dtype="float32", always_2d=True)):
        yield block


def _make_info(sound: Any, frames: int, sampling_rate: int | None) -> AudioInfo:
    file_rate = int(sound.samplerate)
    rate = file_rate if sampling_rate is None else sampling_rate
    if rate not in RATES:
        raise ValueError(f"sampling_rate is {rate}, allowed are {RATES.start} to {RATES.stop - 1}")
    if file_rate * rate // math.gcd(file_rate, rate) ** 2 > MAX_TAPS:
        raise MediaError(
            f"{file_rate} Hz cannot be made {rate} Hz, as they have no large common divisor: give "
            "sampling_rate=None, and convert it yourself"
        )
    return AudioInfo(-(-frames * rate // file_rate), rate, int(sound.channels))


def _resample(samples: Floats, old: int, new: int) -> Floats:
    """Return samples (channels, n) at another rate (channels, ceil(n * new / old))."""
    import torch  # here: measuring needs none

    kernel, width = _make_filter(old, new)
    common = math.gcd(old, new)
    padded = torch.nn.functional.pad(torch.from_numpy(samples), (width, width + old // common))
    filtered = torch.nn.functional.conv1d(padded[:, None], kernel, stride=old // common)
    whole = filtered.transpose(1, 2).reshape(len(samples), -1)
    length = -(-samples.shape[1] * new // old)
    return np.ascontiguousarray(whole[:, :length].numpy())


@functools.lru_cache(16)
def _make_filter(old: int, new: int, zeros: int = 6, rolloff: float = 0.99) -> tuple[Any, int]:
    """Return the filter of each phase, float32 (phases, 1, taps), and how far it reaches back."""
    import torch

    common = math.gcd(old, new)
    old, new = old // common, new // common
    cutoff = min(old, new) * rolloff
    width = math.ceil(zeros * old / cutoff)
    phases = -np.arange(new)[:, None] / new
    times = (phases + np.arange(-width, width + old) / old) * cutoff
    times = times.clip(-zeros, zeros)
    window = np.cos(times * math.pi / zeros / 2) ** 2
    kernel = np.sinc(times) * window * (cutoff / old)
    return torch.from_numpy(kernel[:, None].astype(np.float32)), width
