"""The demo's model computes the same from both layouts, and keeps samples apart."""

from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.tools.demo.model import DemoModelShape, VisionLanguageModel, sum_loss
from counterpoise.workers.collate.layouts import collate_packed, collate_padded

SHAPE = DemoModelShape(vocabulary=50, image_token=49, tile=16, patch=4, tokens_per_tile=4, width=32)


def make_sample(seed: int, length: int, tiles: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    text = generator.integers(1, 40, length)
    ids = np.concatenate([np.full(tiles * SHAPE.tokens_per_tile, SHAPE.image_token), text])
    pixels = generator.integers(0, 256, (tiles, 3, SHAPE.tile, SHAPE.tile))
    return {
        "input_ids": ids.astype(np.int32),
        "labels": np.where(ids == SHAPE.image_token, -100, ids).astype(np.int32),
        "pixel_values": pixels.astype(np.uint8),
        "tiles_per_image": np.array([tiles] if tiles else [], dtype=np.int32),
    }


@pytest.fixture
def model() -> VisionLanguageModel:
    torch.manual_seed(0)
    return VisionLanguageModel(SHAPE)


SAMPLES = [make_sample(1, 9, 2), make_sample(2, 5, 0), make_sample(3, 14, 1)]


def test_padded_and_packed_batches_have_the_same_loss(model: VisionLanguageModel) -> None:
    losses = [
        sum_loss(model(batch), batch["labels"])
        for batch in (collate_padded(SAMPLES), collate_packed(SAMPLES))
    ]
    torch.testing.assert_close(losses[0], losses[1])


def test_a_pack_is_the_sum_of_its_samples(model: VisionLanguageModel) -> None:
    def loss(samples: list[dict[str, Any]]) -> torch.Tensor:
        batch = collate_packed(samples)
        return sum_loss(model(batch), batch["labels"])

    torch.testing.assert_close(loss(SAMPLES), torch.stack([loss([s]) for s in SAMPLES]).sum())


@pytest.mark.parametrize("layout", [collate_padded, collate_packed])
@pytest.mark.parametrize("dummy_tile", [0, SHAPE.tile])
def test_an_empty_batch_touches_every_parameter_with_zero(
    model: VisionLanguageModel, layout: Any, dummy_tile: int
) -> None:
    batch = layout([], dummy_tile=dummy_tile)
    loss = sum_loss(model(batch), batch["labels"])
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_image_tokens_must_fit_the_tiles(model: VisionLanguageModel) -> None:
    sample = make_sample(1, 9, 2) | {"input_ids": np.arange(17, dtype=np.int32)}
    with pytest.raises(ValueError, match="0 image tokens for 8 features of 2 tiles"):
        model(collate_packed([sample]))
