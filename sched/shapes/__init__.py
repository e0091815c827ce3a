"""One description of a model, a device and a layout; its memory and its time, for all planners."""

from .configs import read_config
from .device import DEFAULT_DEVICE, DEVICES, Device, read_device
from .layers import LayerCost, layer_costs, merged, output_layer
from .layout import ParallelLayout, Recompute
from .memory import RankMemory, chain_memory, in_flight, memory
from .model import (
    ENCODER,
    GENERATOR,
    LANGUAGE,
    Amounts,
    Model,
    SubModel,
    TransformerLayer,
    Vocabulary,
)
from .named import read_model
from .splitting import least_longest_stage, partition
from .time import SimulatedStep, StepTime, optimizer_ns, simulate_step, step, step_end

__all__ = [
    "DEFAULT_DEVICE",
    "DEVICES",
    "ENCODER",
    "GENERATOR",
    "LANGUAGE",
    "Amounts",
    "Device",
    "LayerCost",
    "Model",
    "ParallelLayout",
    "RankMemory",
    "Recompute",
    "SimulatedStep",
    "StepTime",
    "SubModel",
    "TransformerLayer",
    "Vocabulary",
    "chain_memory",
    "in_flight",
    "layer_costs",
    "least_longest_stage",
    "memory",
    "merged",
    "optimizer_ns",
    "output_layer",
    "partition",
    "read_config",
    "read_device",
    "read_model",
    "simulate_step",
    "step",
    "step_end",
]
