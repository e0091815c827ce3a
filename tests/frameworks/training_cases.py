"""What the tests of training run in each process of a pool."""

from importlib import import_module
from typing import Any

import torch

from .loops import runs
from .loops.runs import Found, Run, Whole, weights

__all__ = ["Pairs", "Whole", "reference", "sgd", "trained", "weights"]

Pairs = list[tuple[int, list[int]]]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return Run("balanced").optimizer(model)


def trained(framework: str, **named: Any) -> Found:
    """Train under a framework: (step and samples of each microbatch, the weights)."""
    loop = import_module(f"tests.frameworks.loops.{framework}")
    return loop.train(Run(**named))


def reference(per: str, ranks: int, **named: Any) -> Found:
    """The same by a loop of one's own, in one process that plays all ranks."""
    return runs.reference(per, ranks, **named)
