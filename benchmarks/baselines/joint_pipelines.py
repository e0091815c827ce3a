"""The baselines of bubble filling: encoder and language model in one pipeline.

Balanced: layers to virtual stages by Optimus (2025), Appendix B, interleaved 1F1B. Several optimal
partitions exist and the appendix does not say which; it takes the first here, as printed, and
`sched.partition` (the most even one) is the better baseline beside it. Megatron-LM: all encoders
on the first rank, before the language model's layers. How many of those it keeps, and how many
chunks a rank has, the paper does not say: the best share is taken, two chunks, and the encoders'
time is spread over the first rank's chunks, which favours the baseline (set R then comes within
4 % of Table 5's Megatron-LM row; with all of it in the first chunk it is 30 % slower).
"""

import itertools
from dataclasses import dataclass

import numpy as np

from counterpoise.sched.bubble_filling.gaps import GATHER, SCATTER, with_collectives
from counterpoise.sched.bubble_filling.setup import FillSetup, total_ns
from counterpoise.sched.ir.program import place
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.shapes import partition
from counterpoise.sched.simulation.costs import Costs
from counterpoise.sched.simulation.simulator import simulate
from counterpoise.sched.simulation.timeline import Timeline

MEGATRON_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class Times:
    """The forward and backward time of a layer (ns)."""

    forward: int
    backward: int


def layer_times(setup: FillSetup) -> tuple[list[Times], Times]:
    """Return every encoder layer's times in model order, and a language-model layer's."""
    encoders = [
        Times(
            total_ns(stack.layer.forward),
            total_ns(stack.layer.backward_kernels(setup.recompute)) if stack.trainable else 0,
        )
        for stack in setup.encoder_stacks(setup.tensor)
        for _ in range(stack.layers)
    ]
    layer = setup.model.layer
    backward = layer.backward_kernels(setup.recompute)
    return encoders, Times(total_ns(layer.forward), total_ns(backward))


def balanced(setup: FillSetup, *, even: bool = False) -> Timeline:
    """Simulate the balanced baseline; `even` uses the more even partition of `partition`."""
    encoders, layer = layer_times(setup)
    layers = encoders + [layer] * setup.model.layers
    placement = place(setup.stages, setup.chunks)
    ns = [one.forward for one in layers]
    sizes = partition(ns, placement) if even else first_partition(ns, len(placement))
    until = np.cumsum([0, *sizes]).tolist()
    stages = [layers[a:b] for a, b in itertools.pairwise(until)]
    return _simulated(
        setup,
        setup.chunks,
        [sum(one.forward for one in stage) for stage in stages],
        [sum(one.backward for one in stage) for stage in stages],
    )


def equal_stages(setup: FillSetup) -> Timeline:
    """Simulate the balanced baseline as if layers could be cut: all stages take the mean."""
    encoders, layer = layer_times(setup)
    layers, stages = encoders + [layer] * setup.model.layers, setup.stages * setup.chunks
    forward, backward = (
        [sum(getattr(one, which) for one in layers) // stages] * stages
        for which in ("forward", "backward")
    )
    return _simulated(setup, setup.chunks, forward, backward)


def first_partition(layers_ns: list[int], stages: int) -> tuple[int, ...]:
    """Return layers per stage by Appendix B: the shortest longest stage, first of equal choices.

    >>> first_partition([1, 1, 1, 1, 4], 3)
    (2, 2, 1)
    """
    count = len(layers_ns)
    if count < stages:
        raise ValueError(f"{count} layers do not fill {stages} stages; use fewer")
    until = np.cumsum([0, *layers_ns]).astype(np.int64)
    best = until.copy()
    choices = []
    for stage in range(1, stages):
        worse, choice = best.copy(), np.zeros(count + 1, np.int64)
        for end in range(stage + 1, count + 1):
            inner = np.arange(stage, end)
            longest = np.maximum(best[inner], until[end] - until[inner])
            choice[end] = inner[int(np.argmin(longest))]
            worse[end] = longest.min()
        best = worse
        choices.append(choice)
    borders = [count]
    for choice in reversed(choices):
        borders.append(int(choice[borders[-1]]))
    return tuple(np.diff([0, *reversed(borders)]).tolist())


def megatron(setup: FillSetup) -> Timeline:
    """Simulate Megatron-LM's baseline, best of all shares of layers that the first rank keeps."""
    encoders, layer = layer_times(setup)
    extra = Times(sum(one.forward for one in encoders), sum(one.backward for one in encoders))
    chunks = MEGATRON_CHUNKS
    best: Timeline | None = None
    others = setup.stages - 1
    mean = setup.model.layers // setup.stages
    # The paper does not say how many layers the first rank keeps: try all, take the best.
    for kept in range(mean + 1) if others else [setup.model.layers]:
        rest = (setup.model.layers - kept) / max(1, others)
        forward, backward = [], []
        for stage in range(setup.stages * chunks):
            first = stage % setup.stages == 0
            share = kept if first else rest
            forward.append(round((layer.forward * share + first * extra.forward) / chunks))
            backward.append(round((layer.backward * share + first * extra.backward) / chunks))
        found = _simulated(setup, chunks, forward, backward)
        if best is None or found.makespan_ns < best.makespan_ns:
            best = found
    if best is None:
        raise ValueError("a pipeline needs at least one stage")
    return best


def _simulated(setup: FillSetup, chunks: int, forward: list[int], backward: list[int]) -> Timeline:
    program = schedule(
        "interleaved", ranks=setup.stages, microbatches=setup.microbatches, chunks=chunks
    )
    costs = Costs(
        {"F": forward, "B": backward, GATHER: setup.gather_ns, SCATTER: setup.scatter_ns},
        p2p_ns=setup.hop_ns,
    )
    return simulate(with_collectives(program), costs)
