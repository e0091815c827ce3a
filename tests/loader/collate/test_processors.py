"""What every image processor of the installed transformers returns is taken, or needs a rule."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoise.loader import collate_packed, collate_padded
from counterpoise.loader.collate.equivalence import take_apart

pytestmark = pytest.mark.long
transformers = pytest.importorskip("transformers")
SIZES = ([(100, 60), (200, 340)], [(64, 64)], [])
# These give images a batch axis, as their models take them.
NESTED = ("Idefics", "SmolVLM", "Mllama", "GraniteDocling")
# Fields that say how a processor has cut images up, of other lengths in each, texts, attention
# masks that are of patches and not of tokens; and videos that no field says the frames of.
NEED_A_RULE = {
    "fuyu", "granite_docling", "kosmos-2.5", "minicpmv4_6", "mllama", "oneformer", "pix2struct",
    "tvp", "video_llava", "videomae",
}  # fmt: skip


def image(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def processors() -> dict[str, Any]:
    """Return the processors that need no files and no torchvision, by their first family."""
    mapping = transformers.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES
    found: dict[str, Any] = {}
    for family, names in mapping.items():
        name = names if isinstance(names, str) else names.get("pil")
        if name is None or name in {type(each).__name__ for each in found.values()}:
            continue
        try:
            found[family] = getattr(transformers, name)()
            samples(found[family])
        except Exception:  # it wants torchvision, scipy, maps, images of one size, ...
            found.pop(family, None)
    return found


def samples(processor: Any) -> list[dict[str, Any]]:
    """Return a sample for each of SIZES, the last one of text only."""
    rows = []
    for sizes in SIZES:
        row: dict[str, Any] = {"input_ids": np.arange(5)}
        if sizes:
            made = processor([image(*size) for size in sizes], return_tensors="np")
            is_nested = type(processor).__name__.startswith(NESTED)
            row |= {name: value[0] if is_nested else value for name, value in made.items()}
        rows.append(row)
    return rows


def test_what_processors_return_comes_back_or_names_a_rule() -> None:
    needs: dict[str, str] = {}
    every = processors()
    for family, processor in every.items():
        rows = samples(processor)
        for collate in (collate_packed, collate_padded):
            try:
                batch = collate(rows)
            except (TypeError, ValueError) as error:
                needs[family] = str(error)
                continue
            found = take_apart(batch)
            again = collate(found)
            assert again.keys() == batch.keys(), family
            for name, value in batch.items():
                assert np.array_equal(again[name], value), (family, name)
            if np.ndim(rows[0].get("pixel_values", 0)) == np.ndim(batch["pixel_values"]):
                kept = sum(len(row.get("pixel_values", ())) for row in rows)
                assert len(batch["pixel_values"]) == kept, family
    assert len(every) >= 60
    assert needs.keys() <= NEED_A_RULE, needs
    assert not any("tiles in pixel_values" in error for error in needs.values())
