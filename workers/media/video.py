"""Decodes the frames of a video that a rule takes, and says beforehand how many and how large.

A video has a length and a rate in its header; a rule makes of these a number of frames, at equal
distances in time. Each is the picture that a player would show then, so that their number follows
from the header alone, whatever the times of the frames in the file are (variable rates, frames that
are missing). Without a length in the header (recordings of browsers) the packets' times are read,
and nothing is decoded for it. The first frame is always decoded: how a picture is turned, and how
large it really is, FFmpeg says with frames only.

FFmpeg comes with PyAV. Of formats only plain containers are opened, never playlists, which may name
other files; pictures larger than MAX_PIXELS are refused by the decoder itself.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ..images.decode import MAX_PIXELS
from .files import MAX_BYTES, CalledFile, Media, MediaError, check_bytes, import_library, open_media

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg,flv"
# From so far on it is faster to seek than to decode all frames on the way.
SEEK_S = 4
# A header's length may be longer by so many frames than what is there.
SLACK_FRAMES = 2
# What FFmpeg can seek to: headers that lie may name any time.
LAST_PTS = 1 << 62
Size = Callable[[int, int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FrameRule:
    """How many frames of a video are taken, at equal distances in time.

    fps: frames of a second, at least `min_frames` and at most `max_frames`, and never more than
    there are; frames: their number, instead, whatever the length. Both are rounded to a `multiple`
    (of a temporal patch, 2 for Qwen-VL): down, but to one at least. That is how transformers'
    Qwen2-VL samples frames (`Qwen2VLVideoProcessor.sample_frames`, 4.52).

    >>> rule, rate = FrameRule(fps=2, max_frames=16), Fraction(30)
    >>> rule.count(Fraction(5), rate), rule.count(Fraction(60), rate)
    (10, 16)
    """

    fps: float | None = None
    frames: int | None = None
    min_frames: int = 1
    max_frames: int = 768
    multiple: int = 1

    def __post_init__(self) -> None:
        numbers = [number for number in (self.fps, self.frames) if number is not None]
        if len(numbers) != 1 or not 0 < numbers[0] < math.inf:
            raise ValueError(
                f"a frame rule has fps= or frames=, one of them and above 0; got fps={self.fps}, "
                f"frames={self.frames}: give FrameRule(fps=2), say"
            )
        if not 1 <= self.min_frames <= self.max_frames or self.multiple < 1:
            raise ValueError(
                f"needed is 1 <= min_frames <= max_frames and multiple >= 1, got "
                f"{self.min_frames}, {self.max_frames}, {self.multiple}"
            )

    def count(self, seconds: Fraction, rate: Fraction) -> int:
        """Return the number of frames of a video of that length and rate (frames a second)."""
        frames = self.frames
        if frames is None:
            asked = max(math.floor(seconds * Fraction(self.fps or 0)), self.min_frames)
            frames = min(asked, self.max_frames, max(1, round(seconds * rate)))
        return max(frames // self.multiple, 1) * self.multiple


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What `decode_video` gives of a video: frames, and their height and width in pixels, upright.

    seconds: the video's length; fps: its own frames a second, on average.
    """

    frames: int
    height: int
    width: int
    seconds: float
    fps: float


DEFAULT_RULE = FrameRule(fps=2)


def probe_video(
    media: Media,
    frames: FrameRule = DEFAULT_RULE,
    size: Size | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    name: str = "",
) -> VideoInfo:
    """Return what `decode_video` gives for the same arguments, from headers and the first frame.

    Raises MediaError for what is no video, or gives more than `max_bytes`.
    """
    with _open_video(media, frames, size, max_bytes, name) as video:
        return video.info


def decode_video(
    media: Media,
    frames: FrameRule = DEFAULT_RULE,
    size: Size | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    name: str = "",
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the frames that a rule takes as uint8 (frames, height, width, 3), upright RGB.

    size: a function (frames, height, width) -> (height, width) to which frames are resized
    (bicubic), as a processor's smart_resize; name: how errors call the file, where it is no path.
    Raises MediaError, before the frames are allocated, where they take more than `max_bytes`; and
    for a file that is damaged, or ends before its header says.
    """
    with _open_video(media, frames, size, max_bytes, name) as video:
        info = video.info
        pixels = np.empty((info.frames, info.height, info.width, 3), np.uint8)
        shown, picture = None, pixels[0]
        for place, frame in zip(pixels, _pick_frames(video), strict=True):
            if frame is not shown:
                shown, picture = frame, _turn_upright(frame, info.height, info.width, video.turns)
            place[:] = picture
        return pixels


class _Video(NamedTuple):
    """An open video: its first frame, those that come after it, quarter turns until upright."""

    container: Any
    stream: Any
    first: Any
    coming: Iterator[Any]
    turns: int
    length: Fraction
    info: VideoInfo


@contextmanager
def _open_video(
    media: Media, rule: FrameRule, size: Size | None, max_bytes: int, name: str
) -> Iterator[_Video]:
    av = import_library("av", "decoding video")
    with (
        open_media(media, name, av.error.FFmpegError) as file,
        _open_container(av, file) as (container, stream),
    ):
        rate = Fraction(stream.average_rate or stream.guessed_rate or 25)
        length = _find_length(container, stream) or 1 / rate  # one frame may have none
        coming = container.decode(stream)
        first = next(coming, None)
        if first is None or first.pts is None:
            raise MediaError("no frame of it can be decoded" if first is None else NO_TIMES)
        count = rule.count(length, rate)
        turns = round(first.rotation / 90) % 4
        height, width = (first.height, first.width)[:: -1 if turns % 2 else 1]
        if size is not None:
            height, width = size(count, height, width)
        if min(height, width) < 1:
            raise MediaError(f"a size of {height} x {width} has no pixels")
        content = f"{count} frames of {height} x {width} pixels"
        check_bytes(3 * count * height * width, max_bytes, content)
        info = VideoInfo(count, height, width, float(length), float(rate))
        yield _Video(container, stream, first, coming, turns, length, info)


NO_TIMES = "its frames have no times: put it into a container that has them (mp4, webm, mkv)"


@contextmanager
def _open_container(av: Any, file: CalledFile) -> Iterator[tuple[Any, Any]]:
    # Errors in other streams, as in metadata, are none of the pictures.
    options = {"format_whitelist": FORMATS}
    # PyAV 19 never fails at what is no text there, and has no argument for it.
    arguments = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
    with av.open(file, options=options, **arguments) as container:
        if not container.streams.video:
            raise MediaError("there is no video in it")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise MediaError("there is no decoder for it")
        # Workers are as many as there are cores; and one thread keeps few frames.
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        yield container, stream


def _find_length(container: Any, stream: Any) -> Fraction:
    """Return a video's seconds: by its header, else from its first packet's to its last one's end.

    The length of the whole file is another, where sound goes on for longer.
    """
    if stream.duration:
        return Fraction(stream.duration * stream.time_base)
    if tagged := _parse_seconds(stream.metadata.get("DURATION", "")):
        return tagged
    starts, ends = list[int](), [0]
    for packet in container.demux(stream):
        if packet.pts is not None:
            starts = [min([packet.pts, *starts])]
            ends = [max(packet.pts + (packet.duration or 0), *ends)]
    container.seek(0)
    return Fraction((ends[0] - starts[0]) * stream.time_base) if starts else Fraction(0)


def _parse_seconds(text: str) -> Fraction:
    """Return the seconds of a time as matroska's tags have it; 0 for another text.

    >>> _parse_seconds("00:01:02.500000000"), _parse_seconds("soon")
    (Fraction(125, 2), Fraction(0, 1))
    """
    try:
        hours, minutes, seconds = map(Fraction, text.strip("\0 ").split(":"))
    except ValueError:
        return Fraction(0)
    return 3600 * hours + 60 * minutes + seconds


def _pick_frames(video: _Video) -> Iterator[Any]:
    """Yield the frame that is shown at each of the rule's times."""
    shown, coming, ahead, seeks = video.first, video.coming, None, True
    start, tick = shown.pts, video.stream.time_base
    # A stream's times are rounded to ticks: so much before its own a frame is shown, too.
    early = min(Fraction(1, 2), 1 / Fraction(video.info.fps) / tick / 20)
    for number in range(video.info.frames):
        at = start + number * video.length / video.info.frames / tick
        if seeks and (at - _read_pts(shown)) * tick > SEEK_S:
            coming = _seek_frames(video, math.floor(at))
            ahead = next(coming, None)
            # Without an index it may come out later than was asked for: then all are decoded.
            if seeks := ahead is not None and _read_pts(ahead) <= at:
                shown, ahead = ahead, None
            else:
                coming, ahead = _seek_frames(video, start), None
        while True:
            ahead = ahead or next(coming, None)
            if ahead is None or _read_pts(ahead) - early > at:
                break
            shown, ahead = ahead, None
        if ahead is None:
            _check_end(video, shown, at)
        yield shown


def _seek_frames(video: _Video, pts: int) -> Iterator[Any]:
    """Return the frames from the last key frame before a time on."""
    video.container.seek(min(pts, LAST_PTS), stream=video.stream)
    frames: Iterator[Any] = video.container.decode(video.stream)
    return frames


def _read_pts(frame: Any) -> int:
    if frame.pts is None:
        raise MediaError(NO_TIMES)
    return int(frame.pts)


def _check_end(video: _Video, last: Any, at: Fraction) -> None:
    """Raise MediaError where a file ends long before a time at which it should have a frame."""
    frame = 1 / Fraction(video.info.fps) / video.stream.time_base
    end = _read_pts(last) + max(last.duration or 0, frame) + SLACK_FRAMES * frame
    if at > end:
        seconds = float((_read_pts(last) - video.first.pts) * video.stream.time_base)
        raise MediaError(
            f"its last frame is at {seconds:.2f} s, and its header says {video.info.seconds:.2f} s:"
            " it is cut off, or damaged"
        )


def _turn_upright(frame: Any, height: int, width: int, turns: int) -> np.ndarray[Any, Any]:
    """Return a frame as uint8 (height, width, 3)."""
    wide, high = (height, width) if turns % 2 else (width, height)
    av = import_library("av", "decoding video")
    # A pool of threads (from PyAV 17 on) does not live on in a forked worker, which then hangs.
    alone = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}
    rgb = frame.reformat(width=wide, height=high, format="rgb24", interpolation="BICUBIC", **alone)
    return np.rot90(rgb.to_ndarray(), turns)
