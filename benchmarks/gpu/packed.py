"""Packed samples in models of transformers, by attention implementation, beside padded ones.

Each model has random weights. Whether packed samples stay apart is looked at on the device as
`attach_trainer` does, which for flash attention cannot be done on a CPU.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

import counterpoise as cp
from counterpoise.loader.models.kwargs import token_types
from counterpoise.loader.models.proof import prove_packing
from counterpoise.loader.models.samples import packed

from .parts import Row, Task, failure, measured_turns, seconds_of

MODELS = ("llama", "qwen2_5_vl")
START, IMAGE, WORDS = 3, 4, 1024
PATCH = 3 * 2 * 14 * 14  # numbers of a patch of Qwen2.5-VL
GRID = (1, 8, 8)  # patches of an image: 16 tokens


def attentions(task: Task) -> list[tuple[str, str]]:
    """Return layouts and attention implementations that can run here, the one to beat first."""
    found = [("padded", "sdpa"), ("packed", "sdpa")]
    if not task.small:
        found.append(("packed", "flex_attention"))
        versions = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
        found += [("packed", name) for name, module in versions.items() if find_spec(module)]
    return found


def build(kind: str, attention: str, task: Task) -> Any:
    """Return a model with random weights, in bfloat16 on a GPU."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    width, depth, heads = (64, 2, 4) if task.small else (1024, 8, 16)
    text: dict[str, Any] = {
        "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth,
        "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": WORDS,
        "max_position_embeddings": 8192,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "llama":
        maker, config = AutoModelForCausalLM, AutoConfig.for_model(kind, **text)
    else:
        half = width // heads // 2
        sections = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
        vision = {
            "depth": depth, "hidden_size": width, "intermediate_size": 4 * width,
            "num_heads": heads, "out_hidden_size": width,
        }  # fmt: skip
        maker = AutoModelForImageTextToText
        config = AutoConfig.for_model(
            kind, text_config={**text, "rope_parameters": rope}, vision_config=vision,
            image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=5,
            video_token_id=6,
        )  # fmt: skip
    dtype = torch.float32 if task.small else torch.bfloat16
    model = maker.from_config(config, attn_implementation=attention, dtype=dtype)
    return model.to(task.device).train()


def samples_of(kind: str, task: Task) -> list[dict[str, Any]]:
    """Return samples of skewed lengths, with an image each where the model takes them."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for _ in range(4 if task.small else 16):
        length = int(torch.empty(1).log_normal_(3 if task.small else 6, 0.8, generator=draw))
        ids = torch.randint(8, WORDS, (1, min(4096, 8 + length)), generator=draw)
        sample: dict[str, Any] = {"input_ids": ids}
        if kind != "llama":
            tokens = GRID[1] * GRID[2] // 4
            image = torch.tensor([[START, *[IMAGE] * tokens]])
            sample["input_ids"] = torch.cat([image, ids], dim=1)
            sample["pixel_values"] = torch.randn(GRID[1] * GRID[2], PATCH, generator=draw)
            sample["image_grid_thw"] = torch.tensor([GRID])
        found.append({name: each.to(task.device) for name, each in sample.items()})
    return found


def arguments(model: Any, layout: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the model is called with."""
    if layout == "packed":
        batch = packed(samples)
        return {
            "input_ids": batch["input_ids"], "labels": batch["input_ids"],
            **cp.hf_kwargs(batch, model),
        }  # fmt: skip
    rows = [each["input_ids"][0] for each in samples]
    ids = pad_sequence(rows, batch_first=True)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    given["labels"] = torch.where(mask.bool(), ids, -100)
    if "pixel_values" in samples[0]:
        for name in ("pixel_values", "image_grid_thw"):
            given[name] = torch.cat([each[name] for each in samples])
        given["mm_token_type_ids"] = token_types(given, model)
    return given


class Models:
    """One device, on which a model is trained by each attention implementation."""

    def __init__(self, rank: int, task: Task, kind: str) -> None:
        del rank
        self.task, self.kind = task, kind

    def measure(self) -> list[Row]:
        """Return a row for each way; one that fails says so in its row."""
        samples = samples_of(self.kind, self.task)
        tokens = sum(each["input_ids"].numel() for each in samples)
        calls: dict[tuple[str, str], Callable[[], float]] = {}
        told: dict[tuple[str, str], str] = {}
        for way in attentions(self.task):
            try:
                model = build(self.kind, way[1], self.task)
                run = partial(self._train, model, arguments(model, way[0], samples))
                run()
                calls[way] = partial(seconds_of, run, self.task.device)
                apart = way[0] == "packed"
                pictured = self.kind != "llama"
                told[way] = prove_packing(model, pictured).status if apart else ""
            except Exception as error:  # kernels raise anything
                told[way] = failure(error)
        share = self.task.seconds / len(MODELS)
        times = measured_turns({str(way): call for way, call in calls.items()}, share)
        return [
            {
                "model": self.kind, "layout": way[0], "attention": way[1],
                "forward and backward, ms": f"{1e3 * median(times[str(way)]):.2f}"
                if way in calls else "",
                "tokens/s": f"{tokens / median(times[str(way)]):.0f}" if way in calls else "",
                "samples stay apart": text,
            }
            for way, text in told.items()
        ]  # fmt: skip

    def _train(self, model: Any, given: dict[str, Any]) -> None:
        model.zero_grad()
        model(**given).loss.backward()


def measure_packed(task: Task) -> list[Row]:
    """Return the rows of all models, each in a process of its own."""
    found: list[Row] = []
    for kind in MODELS:
        with task.start(Models, 1, kind) as ranks:
            found += ranks.call("measure")[0]
    return found
