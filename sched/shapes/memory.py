"""The memory of every pipeline rank through a step, in parts.

A rank holds weights, gradients and optimizer states of its stages, cut by ZeRO's stage over the
replicas; what the microbatches in flight keep; and, while a backward runs, its working set: the
gradients of activations, and everything of the layer that it recomputes. The peak is at the first
backward with most microbatches in flight. Which those are is read off the schedule's own program.

Not included: fragmentation, NCCL's buffers and workspaces; leave some GB.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from ..ir.kinds import is_staged, kind
from ..ir.registry import schedule
from .device import Device
from .layers import LayerCost, layer_costs, output_layer
from .layout import ParallelLayout
from .model import Amounts, Model


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one GPU of a pipeline rank. `working`: of a backward."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    logits: int = 0
    working: int = 0
    loader: int = 0

    @property
    def states(self) -> int:
        """Return what is held through the whole step."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """Return the peak."""
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True)
class StageCost:
    """A stage's passes in ns, and its bytes: kept by a microbatch, while at work, as delivered.

    `backward_ns` includes `weight_ns`, and recomputation.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int
    output_bytes: int
    parameters: int
    trained: int
    activations: int
    logits: int
    working: int
    largest: int
    delivered: int


def memory(
    model: Model, device: Device, layout: ParallelLayout, amounts: Amounts
) -> tuple[RankMemory, ...]:
    """Return the peak of every pipeline rank; all microbatches have these amounts.

    Raises ValueError if the layout's stages do not add up to the model's layers.
    """
    ranks = chain_memory(layer_costs(model, device, layout, amounts), layout)
    if layout.spread_vocabulary:
        words = output_layer(model, device, layout, amounts)
        ranks = tuple(_with_vocabulary(rank, words, layout) for rank in ranks)
    return ranks


def chain_memory(layers: Sequence[LayerCost], layout: ParallelLayout) -> tuple[RankMemory, ...]:
    """Return the peak of every rank of a chain of layers."""
    stages = stage_costs(layers, layout)
    flights = in_flight(layout.schedule, layout.pp, layout.vpp, layout.microbatches)
    ranks = []
    for rank, peaks in enumerate(flights):
        held = rank_stages(stages, layout, rank)
        peak = max(peaks, key=lambda counts: _held(held, counts))
        loader = layout.prefetch * sum(stage.delivered for stage in held)
        ranks.append(
            RankMemory(
                *rank_states(held, layout),
                sum(n * stage.activations for n, stage in zip(peak, held, strict=True)),
                sum(n * stage.logits for n, stage in zip(peak, held, strict=True)),
                rank_working(held, layout) - loader,
                loader=loader,
            )
        )
    return tuple(ranks)


def rank_stages(stages: Sequence[StageCost], layout: ParallelLayout, rank: int) -> list[StageCost]:
    """Return the stages that a rank holds."""
    return [stage for at, stage in zip(layout.placement, stages, strict=True) if at == rank]


def rank_states(stages: Sequence[StageCost], layout: ParallelLayout) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimizer of a rank with these stages."""
    trained = sum(stage.trained for stage in stages)
    return states(sum(stage.parameters for stage in stages), trained, layout)


def rank_working(stages: Sequence[StageCost], layout: ParallelLayout) -> int:
    """Return what a rank needs beside its states and what it keeps: backwards, loader, ZeRO-3."""
    # ZeRO-3 has the layer at work and the next one whole.
    gathered = 2 * layout.weight_bytes * max(stage.largest for stage in stages)
    loader = layout.prefetch * sum(stage.delivered for stage in stages)
    return max(stage.working for stage in stages) + loader + (gathered if layout.zero == 3 else 0)


def stage_costs(chain: Sequence[LayerCost], layout: ParallelLayout) -> tuple[StageCost, ...]:
    """Return the times and bytes of every stage, with what the layout recomputes of it."""
    costs = []
    for number, positions in enumerate(layout.ranges(len(chain))):
        layers, again = [chain[at] for at in positions], set(layout.recomputed(number))
        kept_bytes = [
            layer.input_bytes if at in again else layer.activation_bytes
            for at, layer in enumerate(layers)
        ]
        logits = sum(layer.logits_bytes for layer in layers)
        # When a layer's backward runs, what the layers behind it kept for this microbatch is free.
        working, free = max(0, *(layer.loss_bytes for layer in layers)), logits
        for at in reversed(range(len(layers))):
            whole = layers[at].activation_bytes - kept_bytes[at]
            working = max(working, layers[at].working_bytes + whole - free)
            free += kept_bytes[at]
        repeated = sum(layer.recompute_ns for at, layer in enumerate(layers) if at in again)
        costs.append(StageCost(
            sum(layer.forward_ns for layer in layers),
            sum(layer.backward_ns for layer in layers) + repeated,
            sum(layer.weight_ns for layer in layers), layers[-1].output_bytes,
            sum(layer.parameters for layer in layers), sum(layer.trained for layer in layers),
            sum(kept_bytes), logits, working, max(layer.parameters for layer in layers),
            sum(layer.delivered_bytes for layer in layers),
        ))  # fmt: skip
    return tuple(costs)


def states(parameters: int, trained: int, layout: ParallelLayout) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimizer by ZeRO's stage.

    >>> states(1000, 900, ParallelLayout(dp=3, zero=2))
    (2000, 1200, 3600)
    """

    def share(size: int, stage: int) -> int:
        return -(-size // layout.replicas) if layout.zero >= stage else size

    return (
        share(layout.weight_bytes * parameters, 3),
        share(layout.gradient_bytes * trained, 2),
        share(layout.optimizer_bytes * trained, 1),
    )


@cache
def in_flight(
    name: str, ranks: int, chunks: int, microbatches: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return for every rank the numbers of microbatches in flight at its peaks, by its stages.

    A microbatch is in flight from its forward to the end of its backward, or of its weight gradient
    where that is a pass of its own. A rank with chunks has several peaks: none of them has as many
    of each stage as another. Raises ValueError as `schedule` does.

    >>> in_flight("1f1b", 3, 1, 8)
    (((3,),), ((2,),), ((1,),))
    """
    # Later microbatches repeat what four rounds show; GPipe holds them all.
    shown = microbatches if name == "gpipe" else min(microbatches, 4 * ranks)
    options = {"chunks": chunks} if name == "interleaved" else {}
    program = schedule(name, ranks=ranks, microbatches=shown, **options)
    result = []
    for rank, passes in enumerate(program.ranks):
        mine = [stage for stage, at in enumerate(program.placement) if at == rank]
        live: Counter[int] = Counter()
        peaks: dict[tuple[int, ...], None] = {}
        for pass_ in passes:
            if not is_staged(pass_.kind):
                continue
            known = kind(pass_.kind)
            if "activation" in known.takes:
                live[pass_.stage] += 1
                peaks[tuple(live[stage] for stage in mine)] = None
            # I leaves as much for W as it frees.
            elif "weight" in known.frees or ("activation" in known.frees and not known.leaves):
                live[pass_.stage] -= 1
        result.append(tuple(peak for peak in peaks if not any(_below(peak, top) for top in peaks)))
    return tuple(result)


def _below(peak: tuple[int, ...], larger: tuple[int, ...]) -> bool:
    return peak != larger and all(a <= b for a, b in zip(peak, larger, strict=True))


def _held(stages: Sequence[StageCost], counts: Sequence[int]) -> int:
    pairs = zip(counts, stages, strict=True)
    return sum(n * (stage.activations + stage.logits) for n, stage in pairs)


def _with_vocabulary(rank: RankMemory, words: LayerCost, layout: ParallelLayout) -> RankMemory:
    """Return a rank's memory with its part of a vocabulary that is spread over the pipeline."""
    parts = states(words.parameters, words.trained, layout)
    return replace(
        rank,
        weights=rank.weights + parts[0],
        gradients=rank.gradients + parts[1],
        optimizer=rank.optimizer + parts[2],
        logits=rank.logits + words.logits_bytes,
        working=max(rank.working, words.loss_bytes),
    )
