"""What a reader of docs/guides/data.md has: a data set, its lengths, tokenizer and processor."""

from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from tests.workers.hf_processor.families import make

processor = make("qwen2_5_vl")

dataset = ["a short text", "a text that is a little longer", ""]
lengths = [len(text) for text in dataset]


class _Tokenizer:
    eos_token_id = 2

    def __call__(self, text: str, **_: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=list(text.encode()))


hf = _Tokenizer()


def parse(line: str) -> str:
    """Return what a line says."""
    return line.strip()


if not Path("captions").exists():
    Path("captions").mkdir()
    Image.new("RGB", (30, 20), "red").save("captions/a.jpg")
    Path("captions/all.csv").write_text("image,caption\na.jpg,red\n")
