"""Layers and modules of the papers' models from shapes, on the devices of the papers."""

from collections.abc import Collection
from dataclasses import replace

from counterpoise.sched.planners.orchestration.models import make_modules
from counterpoise.sched.planners.orchestration.units import Module
from counterpoise.sched.shapes import (
    DEVICES,
    Device,
    LayerCost,
    ParallelLayout,
    layer_costs,
    read_model,
)

# As in the papers: encoders as fast as language models, and links of 200 Gbit/s between nodes.
A100 = replace(DEVICES["a100"], encoder_percent=50, network_bytes_per_s=25 * 10**9)


def preset(
    name: str, images: int = 4, frozen: Collection[str] = (), recompute: bool = False
) -> tuple[Module, ...]:
    model = read_model(name).freeze(*frozen)
    device = replace(A100, encoder_percent=40)
    return make_modules(model, device, model.amounts(tiles=images), recompute)


def pair_layers(
    encoder: str, language: str, *, tp: int = 1, device: Device = A100
) -> tuple[LayerCost, ...]:
    model = read_model(f"{encoder}+{language}")
    layout = ParallelLayout(tp=tp, sequence_parallel=False)
    return layer_costs(model, device, layout, model.amounts())
