"""The peak of memory through a training step, as torch's MemTracker sees it, against `memory`.

Five small models of transformers, in fp32, one process: half of the parameters stand for a rank's
share of two. The second step is measured, when optimizer states and gradients exist.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

from counterpoise.sched.shapes import (
    Device,
    Model,
    ParallelLayout,
    chain_memory,
    layer_costs,
    memory,
    read_config,
)

TEXT = {
    "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 1000, "head_dim": 32,
}  # fmt: skip
TOWER = {
    "hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
    "image_size": 112, "patch_size": 14,
}  # fmt: skip
SEQUENCES, LENGTH = 4, 128
TOKENS = {"tokens": SEQUENCES * LENGTH, "token_pairs": SEQUENCES * LENGTH**2}


@dataclass(frozen=True)
class Case:
    """A model, its loss for a microbatch, the layers that may be recomputed, its description."""

    module: nn.Module
    loss: Callable[[], Tensor]
    layers: Sequence[nn.Module]
    amounts: Mapping[str, int]
    described: Model


def decoder(kind: str, **fields: Any) -> Case:
    config = getattr(transformers, f"{kind}Config")(**{**TEXT, **fields})
    module = getattr(transformers, f"{kind}ForCausalLM")(config)
    words = torch.randint(0, 900, (SEQUENCES, LENGTH))
    return Case(
        module,
        lambda: module(input_ids=words, labels=words, use_cache=False).loss,
        [*module.model.layers],
        TOKENS,
        read_config(config.to_dict()),
    )


def vision() -> Case:
    config = transformers.ViTConfig(**TOWER)
    module = transformers.ViTModel(config, add_pooling_layer=False)
    pixels = torch.randn(8, 3, 112, 112)
    described = read_config(config.to_dict())
    [part] = described.parts
    layers = next(one for one in module.modules() if isinstance(one, nn.ModuleList))
    return Case(
        module,
        lambda: module(pixels).last_hidden_state.square().mean(),
        [*layers],
        {"tokens": 0, "tiles": 8},
        replace(described, parts=(replace(part, back=2 * part.hidden),)),
    )


def frozen_encoder() -> Case:
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config={"model_type": "clip_vision_model", **TOWER},
        image_token_index=999,
    )
    module = transformers.LlavaForConditionalGeneration(config)
    # MemTracker takes no parameters without gradients, but buffers.
    for one in module.model.vision_tower.modules():
        for name, weight in [*one.named_parameters(recurse=False)]:
            delattr(one, name)
            one.register_buffer(name, weight.data)
    words = torch.randint(0, 900, (SEQUENCES, LENGTH))
    words[:, :64] = 999
    pixels = torch.randn(SEQUENCES, 3, 112, 112)
    return Case(
        module,
        lambda: module(input_ids=words, pixel_values=pixels, labels=words, use_cache=False).loss,
        [*module.model.language_model.layers],
        {**TOKENS, "tiles": SEQUENCES},
        read_config(config.to_dict()).freeze("vision"),
    )


CASES: dict[str, Callable[[], Case]] = {
    "gated": lambda: decoder("Llama"),
    "grouped queries": lambda: decoder("Qwen2", num_key_value_heads=1),
    "vit": vision,
    "tied": lambda: decoder("Llama", tie_word_embeddings=True),
    "frozen encoder": frozen_encoder,
}
KEPT = {"none": 0, "some": 2, "all": 4}


def half(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return parameters of about half of the size."""
    own, sizes = list[nn.Parameter](), [0, 0]
    for one in sorted(parameters, key=nn.Parameter.numel, reverse=True):
        if sizes[0] <= sizes[1]:
            own.append(one)
        sizes[sizes[0] > sizes[1]] += one.numel()
    return own


@dataclass(frozen=True)
class Run:
    """A measured step: the bytes at its peak, and at the end of its forward."""

    case: Case
    peak: int
    held: int


def total(tracker: MemTracker, when: str) -> int:
    """Return the bytes of all tensors."""
    [held] = [
        sizes
        for device, sizes in tracker.get_tracker_snapshot(when).items()
        if device.type == "cpu"
    ]
    return next(size for kind, size in held.items() if "Total" in str(kind))


@cache
def measured(name: str, recompute: str, zero: int) -> Run:
    """Measure the second step of a case."""
    torch.manual_seed(0)
    case = CASES[name]()
    for layer in case.layers[: KEPT[recompute]]:
        forward = layer.forward
        layer.forward = lambda *a, _f=forward, **k: checkpoint(_f, *a, use_reentrant=False, **k)
    every = [*case.module.parameters()]
    own = half(every) if zero else every
    optimizer = torch.optim.AdamW(own, foreach=False)
    if zero == 2:
        # As if the gradient had gone to the rank whose it is.
        kept = {id(one) for one in own}
        for one in every:
            if id(one) not in kept:
                one.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
    tracker = MemTracker()
    tracker.track_external(case.module, optimizer)
    held = 0
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            loss = case.loss()
            held = total(tracker, "current")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return Run(case, total(tracker, "peak"), held)


def layout_of(case: Case, recompute: str, zero: int) -> ParallelLayout:
    before = case.described.layers - len(case.layers)
    return ParallelLayout(
        dp=2 if zero else 1, zero=zero, stages=(case.described.layers,),
        recompute=(tuple(range(before, before + KEPT[recompute])),), fused=False, weight_bytes=4,
        gradient_bytes=4, optimizer_bytes=8, activation_bytes=4, prefetch=1,
    )  # fmt: skip


def check(name: str, recompute: str, zero: int) -> None:
    run = measured(name, recompute, zero)
    layout = layout_of(run.case, recompute, zero)
    [found] = memory(run.case.described, Device(), layout, run.case.amounts)
    assert found.total == pytest.approx(run.peak, rel=0.15)


@pytest.mark.parametrize(("name", "recompute"), [("vit", "some"), ("frozen encoder", "all")])
def test_the_peak_of_a_step_is_as_predicted_from_a_config(name: str, recompute: str) -> None:
    check(name, recompute, 1)


@pytest.mark.long
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("recompute", KEPT)
@pytest.mark.parametrize("name", CASES)
def test_every_peak_is_as_predicted_from_a_config(name: str, recompute: str, zero: int) -> None:
    check(name, recompute, zero)


@pytest.mark.long
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_two_measured_runs_predict_the_third(name: str, zero: int) -> None:
    """What a layer keeps and works with, measured in two runs, tells the peak of the third."""
    none, every = measured(name, "none", zero), measured(name, "all", zero)
    layout = layout_of(none.case, "all", zero)
    layers = [*layer_costs(none.case.described, Device(), layout, none.case.amounts)]
    own = range(len(layers) - len(none.case.layers), len(layers))
    kept = (none.held - every.held) // len(own) + layers[-1].input_bytes
    layers = [
        replace(one, activation_bytes=kept) if at in own else one for at, one in enumerate(layers)
    ]
    off = every.peak - chain_memory(layers, layout)[0].total
    layers = [
        replace(one, working_bytes=max(0, one.working_bytes + off)) if at in own else one
        for at, one in enumerate(layers)
    ]
    [found] = chain_memory(layers, layout_of(none.case, "some", zero))
    assert found.total == pytest.approx(measured(name, "some", zero).peak, rel=0.05)
