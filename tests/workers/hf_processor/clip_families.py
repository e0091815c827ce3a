"""Tiny processors of the families that take videos and sounds; `make(family)` returns a new one.

Video processors are transformers' own, over a stand-in for torchvision (video_processors.py).
"""

from collections.abc import Callable
from typing import Any

from tests.workers.hf_processor.families import (
    internvl,
    llava_onevision,
    qwen,
    tokenizer,
    without_check,
)
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


def _speech(name: str, audio: str = "<|AUDIO|>", chunk_length: int = 30, **settings: Any) -> Any:
    """Return one with Whisper's feature extractor, of 16 mel bands; sounds of so many seconds."""
    import transformers

    words = tokenizer(
        audio=audio, audio_token=audio, audio_bos_token="<|audio_bos|>",
        audio_eos_token="<|audio_eos|>",
    )  # fmt: skip
    maker = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=chunk_length)
    kind = getattr(transformers, name)
    return kind(maker, words, chat_template=words.chat_template, **settings)


def _omni() -> Any:
    """Return Qwen2.5-Omni's: images, videos and sounds."""
    import transformers

    def between(name: str) -> str:
        return f"<|vision_bos|><|{name}|><|vision_eos|>"

    words = tokenizer(
        image=between("IMAGE"), video=between("VIDEO"), audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
        image_token="<|IMAGE|>", audio_token="<|AUDIO|>", video_token="<|VIDEO|>",
        vision_bos_token="<|vision_bos|>", vision_eos_token="<|vision_eos|>",
        audio_bos_token="<|audio_bos|>", audio_eos_token="<|audio_eos|>",
    )  # fmt: skip
    made = without_check(transformers.Qwen2_5OmniProcessor)(
        image_processor=transformers.Qwen2VLImageProcessorPil(
            patch_size=8, merge_size=2, min_pixels=32**2, max_pixels=160**2
        ),
        video_processor=make_video_processor("qwen2_vl", "Qwen2VLVideoProcessor", **QWEN),
        # sounds are filled up to two seconds, not to 300
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2),
        tokenizer=words, chat_template=words.chat_template,
    )  # fmt: skip
    made.videos_kwargs = {**made.videos_kwargs, "size": QWEN["size"]}
    return made


def _gemma3n() -> Any:
    import transformers

    words = tokenizer(
        image="<img>", audio="<aud>", image_token="<img>", audio_token="<aud>", boi_token="<i>",
        eoi_token="</i>", boa_token="<a>", eoa_token="</a>",
    )  # fmt: skip
    return transformers.Gemma3nProcessor(
        feature_extractor=transformers.Gemma3nAudioFeatureExtractor(),
        image_processor=transformers.SiglipImageProcessorPil(size={"height": 28, "width": 28}),
        tokenizer=words, chat_template=words.chat_template, audio_seq_length=7, image_seq_length=4,
    )  # fmt: skip


FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen2_vl": lambda: _qwen("Qwen2VLProcessor"),
    "qwen2_5_vl": lambda: _qwen("Qwen2_5_VLProcessor"),
    "qwen3_vl": lambda: _qwen("Qwen3VLProcessor"), "llava_onevision": _llava_onevision,
    "internvl": _internvl, "qwen2_audio": lambda: _speech("Qwen2AudioProcessor"),
    "qwen2_audio_short": lambda: _speech("Qwen2AudioProcessor", chunk_length=1),
    "audioflamingo3": lambda: _speech("AudioFlamingo3Processor", audio_token="<|AUDIO|>"),
    "musicflamingo": lambda: _speech("MusicFlamingoProcessor", audio_token="<|AUDIO|>"),
    "glmasr": lambda: _speech("GlmAsrProcessor", audio_token="<|AUDIO|>"),
    "qwen3_asr": lambda: _speech("Qwen3ASRProcessor"), "qwen2_5_omni": _omni, "gemma3n": _gemma3n,
}  # fmt: skip
VIDEO = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision", "qwen2_5_omni")
AUDIO = ("qwen2_audio", "audioflamingo3", "musicflamingo", "glmasr", "qwen3_asr", "qwen2_5_omni")
# Their processors take one sound in a text.
ONE_SOUND = ("audioflamingo3", "musicflamingo", "glmasr", "qwen3_asr")


def make(family: str) -> Any:
    """Return a new tiny processor of a family."""
    return FAMILIES[family]()
