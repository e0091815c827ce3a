"""Train Hugging Face's Llama, then Qwen2.5-VL with its encoder in the bubbles, on pipelines.

Run: torchrun --standalone --nproc-per-node 4 examples/hf_pipeline.py --steps 3

Two replicas of two stages; vocabulary layers are divided over both. The models are tiny and made
here, samples are numbers: take `from_pretrained`, and what `cp.HFProcessor` makes.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import counterpoise as cp
from counterpoise.sched.runtime import adapt

IMAGE, START = 250, 251  # words from here on are no text
TEXT: dict[str, Any] = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64}
TEXT |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
VISION = {"depth": 2, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 64}
VISION |= {"num_heads": 4, "patch_size": 4, "window_size": 16}


def make_model(kind: str) -> Any:
    """Return a tiny model with tied words, the same on every process."""
    torch.manual_seed(0)
    if kind == "llama":
        config = AutoConfig.for_model(kind, **TEXT, tie_word_embeddings=True)
        return AutoModelForCausalLM.from_config(config)
    given: dict[str, Any] = {"text_config": TEXT | {"rope_parameters": ROPE}}
    given |= {"image_token_id": IMAGE, "vision_start_token_id": START, "tie_word_embeddings": True}
    config = AutoConfig.for_model(kind, **given, vision_config=VISION)
    return AutoModelForImageTextToText.from_config(config)


class Samples(Dataset[dict[str, Any]]):
    """Words that count; with a model of images every other sample begins with 4 x 6 patches."""

    def __init__(self, model: Any) -> None:
        self.places = getattr(model.model, "get_rope_index", None)

    def __len__(self) -> int:
        return 256

    def __getitem__(self, number: int) -> dict[str, Any]:
        chance = torch.Generator().manual_seed(number)
        images = number % 2 if self.places else 0
        image = torch.tensor([START, *[IMAGE] * 6] * images, dtype=torch.long)
        ids = torch.cat([image, (7 * number + torch.arange(5 + number % 23)) % 250])
        sample = {"input_ids": ids, "labels": ids.masked_fill(ids >= IMAGE, -100)}
        if self.places is None:
            return sample
        grid = torch.tensor([[1, 4, 6]] * images, dtype=torch.long).reshape(-1, 3)
        given = {"mm_token_type_ids": (ids == IMAGE).int()[None]}
        axes, _ = self.places(ids[None], **given, image_grid_thw=grid if images else None)
        sample["pixel_values"] = torch.randn(24 * images, 3 * 2 * 4 * 4, generator=chance)
        return {**sample, "image_grid_thw": grid, "mrope_position_ids": axes[:, 0]}


def count(sample: dict[str, Any]) -> dict[str, int]:
    """Return what a sample costs; nothing predicts its first token."""
    labels, patches = int((sample["labels"][1:] >= 0).sum()), len(sample.get("pixel_values", ()))
    return {"tokens": len(sample["input_ids"]), "label_tokens": labels, "patches": patches}


def train(mesh: DeviceMesh, kind: str, steps: int) -> Iterator[float]:
    """Train one model, and yield the loss of each step."""
    model = make_model(kind)
    pipe = adapt(model).pipeline(mesh, "1f1b-alg2", deadline_s=120)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    packs = cp.Balance(budgets={"tokens": 128}, samples_per_step=32, accumulate=4, layout="packed")
    common = {"num_workers": 1, "shuffle": True, "cost": count, "balance": packs}
    loader = cp.DataLoader(Samples(model), ranks=mesh, fields=pipe.needs, **common)
    for step in islice(loader.steps(), steps):
        yield float(pipe.step(step).loss)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    loader.close()
    pipe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    steps_of_each = parser.parse_args().steps
    distributed.init_process_group("gloo")
    where = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    for name in ("llama", "qwen2_5_vl"):
        for loss in train(where, name, steps_of_each):
            if distributed.get_rank() == 0:
                print(f"{name}: loss {loss:.4f}", flush=True)
    distributed.destroy_process_group()
