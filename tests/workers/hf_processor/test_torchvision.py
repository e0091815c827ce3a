"""Image processors of torchvision, the default where it is installed: costs, samples and errors."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import counterpoise as cp
from counterpoise.workers import SampleError
from tests.workers.hf_processor import families
from tests.workers.hf_processor.families import FAMILIES, TEXT, make
from tests.workers.hf_processor.video_processors import image_processor_class

FOLDERS = {
    "Gemma3": "gemma3", "GotOcr2": "got_ocr2", "Idefics3": "idefics3",
    "Llava": "llava", "LlavaNext": "llava_next", "LlavaOnevision": "llava_onevision",
    "Pixtral": "pixtral", "Qwen2VL": "qwen2_vl", "Siglip": "siglip", "SmolVLM": "smolvlm",
}  # fmt: skip


@pytest.fixture
def by_torchvision(monkeypatch: Any) -> None:
    """Make tiny processors take their images by torchvision."""
    monkeypatch.setattr(
        families, "image_processor",
        lambda kind: image_processor_class(FOLDERS[kind], f"{kind}ImageProcessor"),
    )  # fmt: skip


@pytest.fixture(params=["pil", "torchvision"])
def backend(request: Any) -> None:
    """Make tiny processors take their images by Pillow, and by torchvision."""
    if request.param == "torchvision":
        request.getfixturevalue("by_torchvision")


def record(*sizes: tuple[int, int]) -> dict[str, Any]:
    return {"id": "p7", **TEXT, "images": [Image.new("RGB", size, (9, 9, 9)) for size in sizes]}


@pytest.mark.usefixtures("by_torchvision")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_probe_says_what_loading_gives(family: str, caplog: Any) -> None:
    hf, draw = cp.HFProcessor(make(family)), np.random.default_rng(1)
    assert not type(hf.processor.image_processor).__name__.endswith("Pil")
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            sizes = draw.integers(20, 200, (draw.integers(1, 4), 2)).tolist()
            many = record(*((width, height) for width, height in sizes))
            assert hf.probe(many).cost == hf.cost(hf(many))
    assert "samples are loaded to be measured" not in caplog.text


@pytest.mark.usefixtures("backend")
def test_crops_of_gemma_3_are_counted_from_sizes() -> None:
    hf = cp.HFProcessor(make("gemma3_crops"))
    tiles = {size: hf.probe(record(size)).cost["tiles"] for size in ((40, 40), (90, 30), (20, 200))}
    assert tiles == {(40, 40): 1, (90, 30): 1 + 3, (20, 200): 1 + 4}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("family", "size"), [("pixtral", (1, 400)), ("mistral3", (300, 1))])
def test_an_image_too_thin_is_a_broken_sample(family: str, size: Any) -> None:
    hf = cp.HFProcessor(make(family))
    with pytest.raises(SampleError, match="sample 'p7'"):
        hf(record(size))
    rows: Any = [record(size), record((40, 40))]
    loader = cp.DataLoader(hf.over(rows), collate_fn=hf.collate_samples, on_error="skip")
    assert len(list(loader)) == 1


@pytest.mark.parametrize("error", [RuntimeError("size 0"), ZeroDivisionError(), IndexError("list")])
def test_what_an_image_processor_raises_is_of_the_sample(error: Any, monkeypatch: Any) -> None:
    processor = make("llava")
    hf = cp.HFProcessor(processor)

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(type(processor.image_processor), "__call__", refuse)
    with pytest.raises(SampleError, match="sample 'p7': the image processor refuses an image") as e:
        hf(record((40, 40)))
    assert e.value.__cause__.__cause__ is error


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("device"), TypeError("a bug")])
def test_what_is_not_of_an_image_is_raised_as_it_is(error: Any, monkeypatch: Any) -> None:
    processor = make("llava")
    hf = cp.HFProcessor(processor)

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(type(processor.image_processor), "__call__", fail)
    with pytest.raises(type(error)):
        hf(record((40, 40)))
