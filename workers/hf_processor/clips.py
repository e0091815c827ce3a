"""Videos and sounds of a chat, as a processor of Hugging Face takes them: decoded, or of no values.

A probe runs the family's own processor over what has a shape and no values. A video is a tensor of
torch's meta device, of which video processors make grids and frames as of any other. A sound is
silence, and Whisper's feature extractor, which most families share, fills it up and masks it but
makes no spectrogram of it (`quiet`). Other feature extractors have no such part, and their sounds
are loaded to be measured. Read in transformers 5.23.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..media import FrameRule, VideoInfo, decode_audio, decode_video, probe_audio, probe_video
from .fields import Fields
from .files import find_file
from .records import Chat, Record

_MAKERS = ("audio_processor", "feature_extractor")
_FEATURES = ("input_features", "audio_input_features")
# Their models take the frames that the mask has, and nothing of the filling.
_UNFILLED = ("Qwen2_5Omni", "Qwen3Omni")
_AMONG_TILES = ("InternVL", "SmolVLM")
_TORCH_ONLY = ("AudioFlamingo3", "GlmAsr", "MusicFlamingo", "Qwen3ASR")
NO_RULE = (
    "the record has a video, and which of its frames are taken is not said: give HFProcessor "
    "frames=, such as frames=cp.media.FrameRule(fps=2, max_frames=64)"
)


@dataclass(frozen=True, slots=True)
class Clips:
    """Videos (frames, height, width, 3) with what is known of them, and sounds (samples,)."""

    videos: Sequence[Any] = ()
    infos: Sequence[VideoInfo] = ()
    sounds: Sequence[Any] = ()
    sampling_rate: int = 0

    def make_arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a processor's call: these clips, and the user's settings."""
        arguments = dict(settings)
        if self.videos:
            metadata = [_metadata(info) for info in self.infos]
            taken = {"do_sample_frames": False, "video_metadata": metadata}
            arguments["videos_kwargs"] = {**arguments.get("videos_kwargs", {}), **taken}
            arguments["videos"] = [*self.videos]
        if self.sounds:
            rate = {"sampling_rate": self.sampling_rate}
            arguments["audio_kwargs"] = {**arguments.get("audio_kwargs", {}), **rate}
            arguments["audio"] = [*self.sounds]
        return arguments

    def check(self, fields: Fields, processor: Any) -> None:
        """Raise ValueError where a processor has not made fields of its own of these."""
        name = type(processor).__name__
        frames = sorted({info.frames for info in self.infos})
        if len(frames) > 1 and "video_grid_thw" not in fields:
            raise ValueError(
                f"videos have {' and '.join(map(str, frames))} frames, and {name} takes videos of "
                "one number of frames: give frames=cp.media.FrameRule(frames=8)"
            )
        if self.sounds and not any(name in fields for name in _FEATURES):
            raise ValueError(f"{name} makes no {' or '.join(_FEATURES)} of sounds")


def sound_maker(processor: Any) -> Any:
    """Return a processor's feature extractor, None if it takes no sound."""
    makers = (getattr(processor, name, None) for name in _MAKERS)
    return next((maker for maker in makers if maker is not None), None)


def is_whisper(processor: Any) -> bool:
    """Return whether a processor's sounds can be measured without a spectrogram."""
    return type(sound_maker(processor)).__name__ == "WhisperFeatureExtractor"


def takes_torch_only(processor: Any) -> bool:
    """Return whether a processor refuses to return anything but tensors."""
    return type(processor).__name__.startswith(_TORCH_ONLY)


def quiet(processor: Any) -> Any:
    """Return a copy of a processor, whose Whisper feature extractor makes no spectrograms."""
    silent = copy.copy(processor)
    maker = copy.copy(sound_maker(processor))

    def blank(waves: Any, _device: str) -> Any:
        shape = (len(waves), maker.feature_size, len(waves[0]) // maker.hop_length)
        return np.zeros(shape, np.float32)

    maker._np_extract_fbank_features = maker._torch_extract_fbank_features = blank
    for name in _MAKERS:
        if hasattr(processor, name):
            setattr(silent, name, maker)
    return silent


def read_clips(
    chat: Chat,
    record: Record,
    root: Path | None,
    rule: FrameRule | None,
    processor: Any,
    measured: bool = False,
) -> Clips:
    """Return a chat's videos and sounds decoded; measured: of the same shapes, from headers.

    Raises ValueError (MediaError) for what cannot be read, or the processor takes none of.
    """
    processor_name, maker = type(processor).__name__, sound_maker(processor)
    if chat.sounds and maker is None:
        raise ValueError(f"{len(chat.sounds)} sounds, and {processor_name} takes none")
    if chat.videos and getattr(processor, "video_processor", None) is None:
        raise ValueError(f"{len(chat.videos)} videos, and {processor_name} takes none")
    if chat.videos and processor_name.startswith(_AMONG_TILES):
        raise ValueError(
            f"{processor_name} puts the frames of videos among the tiles of images, where nothing "
            "says which are whose: give the frames as images"
        )
    rate = int(getattr(maker, "sampling_rate", 0) or 0)
    infos, videos, sounds = list[VideoInfo](), list[Any](), list[Any]()
    for name, file in _files(chat.videos, record, root, "a video"):
        if rule is None:
            raise ValueError(NO_RULE)
        info = probe_video(file, rule, name=name)
        infos.append(info)
        if measured:  # of the meta device a video has a shape, and takes no memory
            import torch

            shape = (info.frames, info.height, info.width, 3)
            videos.append(torch.empty(shape, dtype=torch.uint8, device="meta"))
        else:
            videos.append(decode_video(file, rule, name=name))
    for name, sound in _files(chat.sounds, record, root, "a sound"):
        if is_array := _is_array(sound):
            sound = _samples(sound, rate)
        if measured:
            samples = len(sound) if is_array else probe_audio(sound, rate, name=name).samples
            sounds.append(np.zeros(samples, np.float32))
        else:
            sounds.append(sound if is_array else decode_audio(sound, rate, name=name))
    return Clips(videos, infos, sounds, rate)


def count_frames(fields: Mapping[str, Any], processor: Any) -> tuple[int, int]:
    """Return the frames of a sample's videos, and the patches or tiles that they are."""
    if "video_grid_thw" in fields:
        grids = np.asarray(fields["video_grid_thw"]).reshape(-1, 3)
        merged = int(processor.video_processor.temporal_patch_size)
        return int(grids[:, 0].sum()) * merged, int(grids.prod(1).sum())
    frames = sum(map(len, fields.get("pixel_values_videos", ())))
    return frames, frames


def count_mel_frames(fields: Mapping[str, Any], processor: Any) -> int:
    """Return the mel frames that the encoder takes of a sample's sounds, filling among them."""
    if type(processor).__name__.startswith(_UNFILLED):
        return int(np.sum(fields.get("feature_attention_mask", 0)))
    features = next((fields[name] for name in _FEATURES if name in fields), None)
    if features is None:
        return 0
    shape = np.shape(features)
    return int(shape[0] * shape[2 if is_whisper(processor) else 1])


def _metadata(info: VideoInfo) -> Any:
    """Return what transformers says of a video of which frames at equal distances were taken."""
    from transformers.video_utils import VideoMetadata

    total = max(1, round(info.seconds * info.fps))
    places = [number * total // info.frames for number in range(info.frames)]
    return VideoMetadata(
        total_num_frames=total, fps=info.fps, width=info.width, height=info.height,
        duration=info.seconds, frames_indices=places,
    )  # fmt: skip


def _files(
    values: Sequence[Any], record: Record, root: Path | None, kind: str
) -> Iterator[tuple[str, Any]]:
    """Yield the name, for errors, and the file of each; a sound may be an array of samples."""
    for number, value in enumerate(values):
        name = value if isinstance(value, str) and len(value) < 120 else f"{kind} ({number})"
        is_array = kind == "a sound" and _is_array(value)
        yield name, value if is_array else find_file(value, record, root, kind)


def _is_array(sound: Any) -> bool:
    """Return whether a sound is an array of samples, or a mapping that has one."""
    return isinstance(sound, np.ndarray) or (isinstance(sound, Mapping) and "array" in sound)


def _samples(sound: Any, rate: int) -> Any:
    """Return an array's samples; ValueError for another rate or shape."""
    sound_rate, array = rate, sound
    if isinstance(sound, Mapping):
        sound_rate, array = sound.get("sampling_rate", rate), np.asarray(sound["array"])
    if sound_rate != rate or array.ndim != 1 or array.dtype.kind != "f" or not len(array):
        raise ValueError(
            f"a sound is an array {array.dtype} {array.shape} at {sound_rate} Hz, needed are "
            f"floats (samples,) at {rate} Hz: give the file, which is converted"
        )
    return array.astype(np.float32, copy=False)
