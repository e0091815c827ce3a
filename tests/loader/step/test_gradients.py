"""A planned step (packed, balanced, uneven microbatches) has the gradient of one padded batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.loader.step.info import StepInfo
from counterpoise.loader.step.loss import Weighting, scale_loss
from counterpoise.workers.collate.layouts import collate_packed, collate_padded
from counterpoise.workers.sources.labels import count_label_tokens

WORDS, WIDTH, SIDE = 19, 8, 2


class Model(nn.Module):
    """An encoder of tiles, one causal attention layer and a head; float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.encoder = nn.Linear(3 * SIDE * SIDE, WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        ids = batch["input_ids"]
        rows, positions, owner = _rows(batch)
        tiles = batch["pixel_values"].float().flatten(1) / 255
        images = torch.repeat_interleave(
            torch.arange(len(batch["images_per_sample"])), batch["images_per_sample"].long()
        )
        of_tile = torch.repeat_interleave(images, batch["tiles_per_image"].long())
        encoded = self.encoder(tiles)[: len(of_tile)]
        features = torch.zeros(len(batch["images_per_sample"]), WIDTH)
        features = features.index_add(0, of_tile, encoded)
        hidden = self.words(ids) + self.places(positions) + features[owner]
        query, key, value = self.attention(hidden).chunk(3, dim=-1)
        same = rows[:, :, None] == rows[:, None, :]
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        mixed = functional.scaled_dot_product_attention(
            query[:, None], key[:, None], value[:, None], attn_mask=(same & causal)[:, None]
        )[:, 0]
        return self.head(hidden + mixed)


def _rows(batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """For each token: what it may attend to, its position, its sample."""
    ids = batch["input_ids"]
    if "cu_seq_lens" in batch:
        lengths = batch["cu_seq_lens"].diff().long()
        owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[None]
        return owner, batch["position_ids"], owner
    places = torch.arange(ids.shape[1]).expand_as(ids)
    owner = torch.arange(len(ids))[:, None].expand_as(ids)
    return batch["attention_mask"], places, owner


def loss_sum(model: Model, batch: dict[str, Any], per: Weighting) -> Tensor:
    """The sum over label tokens, or over samples of their means."""
    logits = model(batch)[:, :-1]
    targets = batch["labels"][:, 1:]
    each = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    if per == "token":
        return each.sum()
    owner = _rows(batch)[2][:, 1:]
    samples = int(owner.max()) + 1
    flat = torch.zeros(samples)
    sums = flat.index_add(0, owner.reshape(-1), each.reshape(-1))
    counts = flat.index_add(0, owner.reshape(-1), (targets != -100).float().reshape(-1))
    return (sums / counts.clamp(min=1)).sum()


def make_samples(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(count):
        length, images = int(rng.integers(2, 40)), int(rng.integers(0, 3))
        tiles = rng.integers(1, 4, images).astype(np.int32)
        labels = rng.integers(0, WORDS, length).astype(np.int32)
        labels[: rng.integers(0, length)] = -100
        samples.append(
            {
                "input_ids": rng.integers(0, WORDS, length).astype(np.int32),
                "labels": labels,
                "tiles_per_image": tiles,
                "pixel_values": rng.integers(
                    0, 256, (int(tiles.sum()), 3, SIDE, SIDE), dtype=np.uint8
                ),
            }
        )
    return samples


def gradients(model: Model) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("per", ["token", "sample"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_planned_step_has_the_gradient_of_one_big_batch(per: Weighting, ranks: int) -> None:
    samples = make_samples(41)
    labels = [count_label_tokens(sample["labels"]) for sample in samples]
    costs = np.array([[len(s["pixel_values"]), len(s["input_ids"])] for s in samples])
    config = PlanConfig(ranks, 41, "auto", ("tiles", "tokens"), (12, 90))
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    sizes = {len(m.ordinals) for rank in batch.ranks for m in rank}
    assert len(sizes) > 1

    big = Model()
    whole = sum(labels) if per == "token" else len(samples)
    (loss_sum(big, collate_padded(samples, dummy_tile=SIDE), per) / whole).backward()

    ours = [Model() for _ in range(ranks)]
    for r, (model, rank) in enumerate(zip(ours, batch.ranks, strict=True)):
        own = [o for m in rank for o in m.ordinals]
        for k, microbatch in enumerate(rank):
            held = list(microbatch.ordinals)
            info = StepInfo(
                epoch=0, step=0, microbatch=k, microbatches=len(rank), rank=r, ranks=ranks,
                samples=len(held), label_tokens=sum(labels[o] for o in held),
                rank_samples=len(own), rank_label_tokens=sum(labels[o] for o in own),
                step_samples=len(samples), step_label_tokens=sum(labels),
            )  # fmt: skip
            packed = collate_packed([samples[o] for o in held], dummy_tile=SIDE)
            scale_loss(loss_sum(model, packed, per), info, per).backward()

    # DDP and FSDP average gradients over the ranks
    averaged = [torch.stack(parts).mean(dim=0) for parts in zip(*map(gradients, ours), strict=True)]
    for mine, reference in zip(averaged, gradients(big), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6)
