"""What the scripts of examples/hf are run on: folders of tiny models, and data to train them on.

Real processors of Qwen-VL need torchvision, for videos; `without_videos` stands in for that.
"""

import importlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.tars import write_tar
from tests.workers.hf_processor.families import _NoVideos, make, tokenizer
from tests.workers.hf_processor.models import TEXT, make_model


def without_videos(patch: pytest.MonkeyPatch) -> None:
    """Let AutoProcessor load Qwen's processor where torchvision is not installed."""
    from transformers import Qwen2_5_VLProcessor as Processor

    module = importlib.import_module("transformers.models.auto.video_processing_auto")
    made = classmethod(lambda *_, **__: _NoVideos())
    patch.setattr(module.AutoVideoProcessor, "from_pretrained", made)
    check = Processor.check_argument_for_proper_class

    def checked(self: Any, name: str, argument: Any) -> Any:
        return None if name == "video_processor" else check(self, name, argument)

    patch.setattr(Processor, "check_argument_for_proper_class", checked)


def vision_language_model(family: str, folder: Path) -> str:
    """Save a tiny model with its processor, and return the folder."""
    processor = make(family)
    make_model(family, processor).float().save_pretrained(folder)
    if family == "qwen2_5_vl":
        processor.tokenizer.save_pretrained(folder)
        pixels = processor.image_processor.to_dict()
        told = {"processor_class": "Qwen2_5_VLProcessor", "image_processor": pixels}
        (folder / "processor_config.json").write_text(json.dumps(told))
    else:
        processor.save_pretrained(folder)
    return str(folder)


def llama(folder: Path) -> str:
    """Save a tiny Llama with its tokenizer, and return the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer()
    words.save_pretrained(folder)
    LlamaForCausalLM(LlamaConfig(**TEXT, vocab_size=len(words))).save_pretrained(folder)
    return str(folder)


def recogniser(folder: Path) -> str:
    """Save a tokenizer and the configuration of a tiny Parakeet, and return the folder."""
    from transformers import ParakeetCTCConfig

    words = tokenizer()
    words.save_pretrained(folder)
    encoder = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "subsampling_conv_channels": 4, "num_mel_bins": 80,
    }  # fmt: skip
    blank = {"vocab_size": len(words) + 1, "pad_token_id": len(words)}
    ParakeetCTCConfig(encoder_config=encoder, **blank).save_pretrained(folder)
    return str(folder)


def conversations(count: int) -> list[dict[str, Any]]:
    """Records with no, one or two images; the third sample of each three has the longest answer."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(count):
        sizes = draw.integers(20, 60, (number % 3, 2))
        images = [Image.fromarray(draw.integers(1, 256, (*size, 3), np.uint8)) for size in sizes]
        asked = "<image>" * len(images) + "how " * int(draw.integers(1, 9))
        said = "so " * int(draw.integers(1, 60))
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        rows.append({"messages": messages, "images": images})
    return rows


def write_parquet(rows: list[dict[str, Any]], path: Path) -> str:
    """Write records as a Hugging Face data set keeps them, and return the path."""
    from datasets import Dataset, Features, Image as Pictures, List, Value

    message = {"role": Value("string"), "content": Value("string")}
    features = Features({"messages": List(message), "images": List(Pictures())})
    Dataset.from_list(rows, features=features).to_parquet(path)
    return str(path)


def write_samples(samples: Sequence[Mapping[str, bytes]], path: Path) -> str:
    """Write samples, each of members by extension, and return the path."""
    numbered = enumerate(samples)
    members = {f"{n:04}.{name}": each[name] for n, each in numbered for name in each}
    return str(write_tar(path, members))


def tar_of(rows: list[dict[str, Any]], path: Path) -> str:
    """Write records as a tar, and return the path."""
    samples = []
    for row in rows:
        said = json.dumps({"messages": row["messages"]}).encode()
        members = {f"img{place}.png": png(image) for place, image in enumerate(row["images"])}
        samples.append({**members, "json": said})
    return write_samples(samples, path)


def png(image: Image.Image) -> bytes:
    """Return an image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def sounds(count: int, path: Path) -> str:
    """Write sounds of 0.3 to 3 s with texts as a tar, and return the path."""
    import soundfile

    draw, samples = np.random.default_rng(0), []
    for _ in range(count):
        file = io.BytesIO()
        noise = draw.normal(0, 0.1, int(draw.integers(4_800, 48_000)))
        soundfile.write(file, noise, 16_000, format="WAV")
        samples.append({"wav": file.getvalue(), "txt": b"so many apples"})
    return write_samples(samples, path)


def write_lines(count: int, path: Path) -> str:
    """Write texts of very different lengths as JSON lines, and return the path."""
    draw = np.random.default_rng(0)
    texts = ("She has 12 apples. " * int(draw.integers(1, 20)) for _ in range(count))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)
