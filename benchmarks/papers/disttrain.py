"""DistTrain's tables, by the planner of `counterpoise plan orchestrate`.

The paper prints ranges over its models; the least and the most of ours stand beside them. Images a
sample are not printed: 4. Megatron-LM's layout is the paper's: TP 8 for all, one stage each for
encoder and generator, 1, 2 and 10 for the backbones.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from counterpoise.balancer.planning.ordering.search import find_order
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.sched.bubble_filling.presets import GpuSpec, MicrobatchShape, Tower, language_layer
from counterpoise.sched.bubble_filling.setup import total_ns
from counterpoise.sched.planners.orchestration.models import FROZEN, preset
from counterpoise.sched.planners.orchestration.search import Allocation, divisors
from counterpoise.sched.planners.orchestration.simulated import plan_layouts, rerank
from counterpoise.sched.planners.orchestration.units import OrchestrationProblem, Unit, iteration_ns

from ..planning.order import pipeline_of

Ours = Mapping[str, float]
SMALL, LARGE = ("mllm-9b", "mllm-15b"), "mllm-72b"
MODELS = (*SMALL, LARGE)
MEGATRON_STAGES = {"mllm-9b": 1, "mllm-15b": 2, "mllm-72b": 10}
# Section 8.2: 98 GPUs, and these batches.
BATCHES = {"mllm-9b": 128, "mllm-15b": 64, "mllm-72b": 40}
SETTINGS: tuple[tuple[str, ...], ...] = (
    FROZEN, ("backbone", "generator"), ("encoder", "generator"), ("encoder", "backbone"),
)  # fmt: skip
PEAK, MEMORY = 312e12, 74 * 10**9
