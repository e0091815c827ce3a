"""Tiny processors of the families that take videos and sounds; `make(family)` returns a new one.

Video processors are transformers' own, over a stand-in for torchvision (video_processors.py).
"""

from collections.abc import Callable
from typing import Any

from tests.workers.hf_processor.families import internvl, llava_onevision, qwen, tokenizer
from tests.workers.hf_processor.video_processors import make_video_processor

QWEN = {"patch_size": 8, "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}}
SQUARE = {"size": {"height": 28, "width": 28}}


def _qwen(name: str) -> Any:
    of_qwen3 = "Qwen3" in name
    family, kind = ("qwen3_vl", "Qwen3VL") if of_qwen3 else ("qwen2_vl", "Qwen2VL")
    settings = {**QWEN, "cap_pixels_per_frame": of_qwen3}
    if of_qwen3:
        settings["size"] = {"shortest_edge": 16 * 16, "longest_edge": 6 * 64 * 64}
    return qwen(
        name, video_processor=make_video_processor(family, f"{kind}VideoProcessor", **settings)
    )


def _llava_onevision() -> Any:
    return llava_onevision(
        make_video_processor("llava_onevision", "LlavaOnevisionVideoProcessor", **SQUARE)
    )


def _internvl() -> Any:
    return internvl(make_video_processor("internvl", "InternVLVideoProcessor", **SQUARE))


def _speech(name: str, audio: str = "<|AUDIO|>", **settings: Any) -> Any:
    """Return one with Whisper's feature extractor, of 16 mel bands."""
    import transformers

    words = tokenizer(
        audio=audio, audio_token=audio, audio_bos_token="<|audio_bos|>",
        audio_eos_token="<|audio_eos|>",
    )  # fmt: skip
    maker = transformers.WhisperFeatureExtractor(feature_size=16)
    kind = getattr(transformers, name)
    return kind(maker, words, chat_template=words.chat_template, **settings)


FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen2_vl": lambda: _qwen("Qwen2VLProcessor"),
    "qwen2_5_vl": lambda: _qwen("Qwen2_5_VLProcessor"),
    "qwen3_vl": lambda: _qwen("Qwen3VLProcessor"),
    "llava_onevision": _llava_onevision,
    "internvl": _internvl,
    "qwen2_audio": lambda: _speech("Qwen2AudioProcessor"),
    "audioflamingo3": lambda: _speech("AudioFlamingo3Processor", audio_token="<|AUDIO|>"),
    "musicflamingo": lambda: _speech("MusicFlamingoProcessor", audio_token="<|AUDIO|>"),
    "glmasr": lambda: _speech("GlmAsrProcessor", audio_token="<|AUDIO|>"),
    "qwen3_asr": lambda: _speech("Qwen3ASRProcessor"),
}
VIDEO = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision")
AUDIO = ("qwen2_audio", "audioflamingo3", "musicflamingo", "glmasr", "qwen3_asr")
# Their processors take one sound in a text.
ONE_SOUND = ("audioflamingo3", "musicflamingo", "glmasr", "qwen3_asr")


def make(family: str) -> Any:
    """Return a new tiny processor of a family."""
    return FAMILIES[family]()
