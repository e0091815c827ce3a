"""A tiny model of a family, trained on batches of HFProcessor as on its samples one by one."""

import copy
import inspect
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import counterpoise as cp
from tests.workers.hf_processor.families import make
from tests.workers.hf_processor.models import make_model

STEPS, SAMPLES = 8, 3
# Gemma 3 sees an image's tokens in both directions, and samples of a pack too: its batches are
# padded, by the processor itself.
WAYS = [
    ("qwen2_5_vl", "packed"), ("llava", "packed"), ("internvl", "packed"), ("idefics3", "packed"),
    ("gemma3", "torch"),
]  # fmt: skip
IDEFICS_ROWS = ("pixel_values", "pixel_attention_mask")


def picture(seed: int) -> Image.Image:
    draw = np.random.default_rng(seed)
    size = draw.integers(20, 60, 2)
    return Image.fromarray(draw.integers(1, 256, (*size, 3), np.uint8))


ROWS: Any = [
    {"messages": [
        {"role": "user", "content": "how " * (number % 5 + 1)},
        {"role": "assistant", "content": "so " * (number % 4 + 1)},
    ], "images": [picture(number + each) for each in range(number % 3)]}
    for number in range(4 * SAMPLES)
]  # fmt: skip


def loss_of(model: Any, batch: Any, packed: bool) -> torch.Tensor:
    """The sum of the losses of a batch's label tokens."""
    taken = {*inspect.signature(model.forward).parameters} - {"labels", "position_ids"}
    given = {name: value for name, value in batch.items() if name in taken}
    if packed:
        given |= cp.hf_kwargs(batch, model)  # and images in a row for Idefics 3
    if not len(given.get("pixel_values", ())):
        given = {n: v for n, v in given.items() if n not in (*IDEFICS_ROWS, "image_grid_thw")}
    if "pixel_values" in given:
        given["pixel_values"] = given["pixel_values"].double()
    logits = model(**given).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100
    )


def assert_near(ours: list[Any], theirs: list[Any], most: float) -> None:
    """Check all tensors together; one that is None has none of it, and so 0."""
    one, other = (
        torch.cat([torch.zeros(1) if each is None else each.detach().flatten() for each in some])
        for some in (ours, theirs)
    )
    assert (one - other).abs().max() <= most * other.abs().max()


@pytest.mark.parametrize(("family", "layout"), WAYS)
def test_steps_are_those_of_samples_one_by_one(family: str, layout: Any) -> None:
    most = 1e-5 if family == "gemma3" else 1e-9  # Gemma's norms compute in float32
    processor = make(family)
    hf = cp.HFProcessor(processor)
    model = make_model(family, processor)
    single = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, single)]
    loader = cp.DataLoader(
        ROWS, shuffle=True, collate_fn=hf,
        balance=cp.Balance(budgets={"tokens": 4096}, samples_per_step=SAMPLES, layout=layout),
    )  # fmt: skip
    seen = 0
    steps = (step for _ in range(STEPS) for step in loader.steps())
    for step in islice(steps, STEPS):
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            loss = loss_of(model, batch, layout == "packed") / info.step_label_tokens
            loss.backward()
            for key in info.keys:
                one = loss_of(single, hf([ROWS[int(key)]]), False)
                (one / info.step_label_tokens).backward()
            seen += len(info.keys)
        ours, theirs = ([each.grad for each in one.parameters()] for one in (model, single))
        assert_near(ours, theirs, most)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert seen == STEPS * SAMPLES
    assert_near([*model.parameters()], [*single.parameters()], most)
