"""Modules to lay out: DistTrain's three models from shapes, or a JSON file of measured times.

The shapes of DistTrain (2025), section 8: Llama-3 backbones of sequences of 8192 tokens, ViT-H as
encoder, Stable Diffusion 2.1 as generator, on A800s. What the paper does not say is assumed here:
half of the peak is reached by the backbone, 40 % by the encoder and 35 % by the generator; patches
of 16 x 16, so 4096 tokens for an image of 1024 x 1024; a U-Net's forward of 6 TFLOP at 1024 x 1024
and 0.8 TFLOP at 512 x 512.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from ...ir.typed_json import read_json
from ...shapes import Device, TransformerLayer, Vocabulary
from .units import TENSOR_SIZES, Module

SEQUENCE = 8192
# NVLink of 300 GB/s in both directions together.
_BACKBONE = Device(efficiency_percent=50, link_bytes_per_s=150 * 10**9)
_ENCODER = Device(efficiency_percent=40, link_bytes_per_s=150 * 10**9)
_GENERATOR = Device(efficiency_percent=35, link_bytes_per_s=150 * 10**9)
# A parameter and its gradient in bf16 and fp32; Adam's fp32 copy and two moments.
_STATE_BYTES, _OPTIMIZER_BYTES = 6, 12


@dataclass(frozen=True, slots=True)
class Preset:
    """One of the paper's models: its backbone, and the side of its images in pixels."""

    backbone: TransformerLayer
    layers: int
    pixels: int


PRESETS = {
    "mllm-9b": Preset(TransformerLayer(4096, 11008, 3), 32, 512),
    "mllm-15b": Preset(TransformerLayer(5120, 13824, 3), 40, 512),
    "mllm-72b": Preset(TransformerLayer(8192, 28672, 3, 2 * 1024), 80, 1024),
}
FROZEN = ("encoder", "backbone", "generator")


def preset(
    name: str, images: int = 4, frozen: Collection[str] = (), recompute: bool = False
) -> tuple[Module, ...]:
    """Return the modules of a model of the paper. `images`: of a sample, on average.

    `frozen`: modules without weight gradients; the encoder then has no backward at all, the others
    still pass gradients on to the projectors. Raises ValueError for unknown names.

    >>> [module.name for module in preset("mllm-9b")]
    ['encoder', 'backbone', 'generator']
    """
    if name not in PRESETS:
        raise ValueError(f"unknown model {name!r}; give a JSON file or one of {', '.join(PRESETS)}")
    if unknown := set(frozen) - set(FROZEN):
        raise ValueError(f"cannot freeze {sorted(unknown)[0]!r}; modules are {', '.join(FROZEN)}")
    if images < 1:
        raise ValueError(f"got {images} images a sample; give 1 or more")
    found = PRESETS[name]
    chain = (_encoder(found, images), _backbone(found), _generator(found, images))
    thawed = tuple(freeze(module) if module.name in frozen else module for module in chain)
    return tuple(map(_recomputed, thawed)) if recompute else thawed


def freeze(module: Module) -> Module:
    """Return the module without weight gradients: half a backward, no gradients, no optimizer.

    A frozen encoder comes first in the chain, so its input gradients are not needed either.
    """
    first = module.name == "encoder"
    return replace(
        module,
        backward_ns={tp: 0 if first else ns // 2 for tp, ns in module.backward_ns.items()},
        state_bytes=module.state_bytes * 2 // _STATE_BYTES,
        optimizer_bytes=0,
        activation_bytes=0 if first else module.activation_bytes,
    )


@dataclass(frozen=True, slots=True)
class _ModuleList:
    modules: tuple[Module, ...]


def read_modules(text: str) -> tuple[Module, ...]:
    """Return modules from JSON: {"modules": [{"name": ..., "forward_ns": {"1": 5}, ...}]}.

    The keys are the fields of `Module`, times by TP size. Raises ValueError, in one line that names
    the field and its value, for anything else.
    """
    return read_json(text, _ModuleList, "the model").modules


def _backbone(found: Preset) -> Module:
    layer, words = found.backbone, Vocabulary(found.backbone.hidden, 128256)
    # Causal attention looks at half of the pairs.
    flops = layer.forward_flops(tokens=SEQUENCE, pairs=SEQUENCE**2 // 2) * found.layers
    flops += words.forward_flops(SEQUENCE)
    parameters = layer.parameters * found.layers + 2 * words.parameters
    return _of_shape("backbone", found.layers, layer, (flops, SEQUENCE, parameters), _BACKBONE)


def _encoder(found: Preset, images: int) -> Module:
    layer, layers, tokens = TransformerLayer(1280), 32, (found.pixels // 16) ** 2
    flops = layers * images * layer.forward_flops(tokens=tokens, pairs=tokens**2)
    shape = (flops, images * tokens, layers * layer.parameters)
    return _of_shape("encoder", layers, layer, shape, _ENCODER, images)


def _generator(found: Preset, images: int) -> Module:
    flops = images * (6 * 10**12 if found.pixels == 1024 else 8 * 10**11)
    # A U-Net of 16 blocks: about 1e9 parameters; its widest tensors are 320 channels of latents.
    tokens = images * (found.pixels // 8) ** 2
    return _of_shape(
        "generator", 16, TransformerLayer(320), (flops, tokens, 10**9), _GENERATOR, images
    )


def _of_shape(
    name: str,
    layers: int,
    layer: TransformerLayer,
    shape: tuple[int, int, int],
    device: Device,
    parts: int = 1,
) -> Module:
    """Return a module. `shape`: FLOPs of a forward, tokens, parameters."""
    flops, tokens, parameters = shape
    sync = {tp: layers * layer.parallel_ns(device, tokens=tokens, ranks=tp) for tp in TENSOR_SIZES}
    return Module(
        name,
        layers,
        {tp: device.compute_ns(flops) // tp + sync[tp] for tp in TENSOR_SIZES},
        {tp: 2 * device.compute_ns(flops) // tp + sync[tp] for tp in TENSOR_SIZES},
        state_bytes=_STATE_BYTES * parameters,
        optimizer_bytes=_OPTIMIZER_BYTES * parameters,
        activation_bytes=layers * layer.activation_bytes(tokens),
        output_bytes=2 * tokens * layer.hidden,
        parts=parts,
    )


def _recomputed(module: Module) -> Module:
    """Return the module with recomputation: layers keep their inputs and run forwards twice."""
    if not module.activation_bytes:
        return module
    held = module.layers * module.output_bytes + module.activation_bytes // module.layers
    again = {tp: ns + module.forward_ns[tp] for tp, ns in module.backward_ns.items()}
    return replace(module, backward_ns=again, activation_bytes=held)
