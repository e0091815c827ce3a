"""Makes video and audio files: frame k of a video is grey, and lighter the later it comes."""

import io
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

STEP = 4  # grey levels from frame to frame
COUNT = 60
FPS = 10


def picture(number: int, width: int, height: int) -> np.ndarray:
    """Return a grey picture, white in the first eighth of its first rows."""
    found = np.full((height, width, 3), STEP * (number % COUNT), np.uint8)
    found[: height // 4, : width // 4] = 255
    return found


def numbers(frames: np.ndarray) -> list[int]:
    """Return which frames of a video these are, by their grey in the middle."""
    middle = frames[:, frames.shape[1] // 2, frames.shape[2] // 2, 0]
    return np.rint(middle / STEP).astype(int).tolist()


def video(
    container: str = "mp4",
    codec: str = "libx264",
    *,
    count: int = COUNT,
    width: int = 64,
    height: int = 48,
    times_ms: Sequence[int] | None = None,
    turned: int = 0,
    sound_s: float = 0,
    pixels: str = "yuv420p",
    codec_options: dict[str, str] | None = None,
    **options: str,
) -> bytes:
    """Return a video file; times_ms: those of its frames, FPS a second if not given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video"
        with av.open(str(path), "w", format=container, options=options) as file:
            stream: Any = file.add_stream(codec, rate=FPS)
            stream.bit_rate = 0 if codec == "libsvtav1" else 2_000_000
            stream.width, stream.height, stream.pix_fmt = width, height, pixels
            # Threads of libvpx take ten times as long for pictures as small as these.
            alone = {"threads": "1"} if codec.startswith("libvpx") else {}
            stream.codec_context.options = alone | (codec_options or {})
            if turned:
                if not hasattr(stream, "set_display_rotation"):
                    pytest.skip("this PyAV reads the rotation of videos, but writes none")
                stream.set_display_rotation(turned)
            if times_ms is not None:
                stream.codec_context.time_base = Fraction(1, 1000)
            sound: Any = file.add_stream("libopus", rate=48_000) if sound_s else None
            for number in range(count):
                frame = av.VideoFrame.from_ndarray(picture(number, width, height), format="rgb24")
                if times_ms is not None:
                    frame.pts, frame.time_base = times_ms[number], Fraction(1, 1000)
                file.mux(stream.encode(frame))
            file.mux(stream.encode())
            if sound is not None:
                silence = np.zeros((1, int(48_000 * sound_s)), np.float32)
                frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
                frame.sample_rate, frame.pts = 48_000, 0
                file.mux(sound.encode(frame))
                file.mux(sound.encode())
        return path.read_bytes()


def wave(samples: int, rate: int, channels: int = 1) -> np.ndarray:
    """Return a sound (samples, channels): 440 Hz in the first channel, 660 in the second, ..."""
    times = np.arange(samples) / rate
    tones = [0.5 * np.sin(2 * np.pi * 220 * (2 + k) * times) for k in range(channels)]
    return np.stack(tones, axis=1).astype(np.float32)


def audio(
    kind: str = "WAV", samples: int = 20_011, rate: int = 16_000, channels: int = 1, **options: Any
) -> bytes:
    """Return an audio file of `wave`."""
    file = io.BytesIO()
    soundfile.write(file, wave(samples, rate, channels), rate, format=kind, **options)
    return file.getvalue()
