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
        return sum(getattr(self, one.name) for one in fields(self))


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
    found = memory_of(layer_costs(model, device, layout, amounts), layout)
    if layout.spread_vocabulary:
        words = output_layer(model, device, layout, amounts)
        found = tuple(_with_vocabulary(one, words, layout) for one in found)
    return found


def memory_of(layers: Sequence[LayerCost], layout: ParallelLayout) -> tuple[RankMemory, ...]:
    """Return the peak of every rank of a chain of layers."""
    stages = stage_costs(layers, layout)
    flights = in_flight(layout.schedule, layout.pp, layout.vpp, layout.microbatches)
    found = []
    for rank, counts in enumerate(flights):
        own = of_rank(stages, layout, rank)
        kept = max(counts, key=lambda one: _held(own, one))
        loader = layout.prefetch * sum(stage.delivered for stage in own)
        found.append(
            RankMemory(
                *rank_states(own, layout),
                sum(n * stage.activations for n, stage in zip(kept, own, strict=True)),
                sum(n * stage.logits for n, stage in zip(kept, own, strict=True)),
                rank_working(own, layout) - loader,
                loader=loader,
            )
        )
    return tuple(found)


def of_rank(stages: Sequence[StageCost], layout: ParallelLayout, rank: int) -> list[StageCost]:
    """Return the stages that a rank holds."""
    return [one for at, one in zip(layout.placement, stages, strict=True) if at == rank]


def rank_states(own: Sequence[StageCost], layout: ParallelLayout) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimizer of a rank with these stages."""
    return states(sum(one.parameters for one in own), sum(one.trained for one in own), layout)


def rank_working(own: Sequence[StageCost], layout: ParallelLayout) -> int:
    """Return what a rank needs beside its states and what it keeps: backwards, loader, ZeRO-3."""
    # ZeRO-3 has the layer at work and the next one whole.
    gathered = 2 * layout.weight_bytes * max(one.largest for one in own)
    loader = layout.prefetch * sum(one.delivered for one in own)
    return max(one.working for one in own) + loader + (gathered if layout.zero == 3 else 0)


def stage_costs(layers: Sequence[LayerCost], layout: ParallelLayout) -> tuple[StageCost, ...]:
    """Return the times and bytes of every stage, with what the layout recomputes of it."""
    found = []
    for number, stage in enumerate(layout.ranges(len(layers))):
        own, again = [layers[at] for at in stage], set(layout.recomputed(number))
        kept = [
            one.input_bytes if at in again else one.activation_bytes for at, one in enumerate(own)
        ]
        logits = sum(one.logits_bytes for one in own)
        # When a layer's backward runs, what the layers behind it kept for this microbatch is free.
        working, free = max(0, *(one.loss_bytes for one in own)), logits
        for at in reversed(range(len(own))):
            whole = own[at].activation_bytes - kept[at]
            working = max(working, own[at].working_bytes + whole - free)
            free += kept[at]
        repeated = sum(one.recompute_ns for at, one in enumerate(own) if at in again)
        found.append(
            StageCost(
                sum(one.forward_ns for one in own),
                sum(one.backward_ns for one in own) + repeated,
                sum(one.weight_ns for one in own),
                own[-1].output_bytes,
                sum(one.parameters for one in own),
                sum(one.trained for one in own),
                sum(kept),
                logits,
                working,
                max(one.parameters for one in own),
                sum(one.delivered_bytes for one in own),
            )
        )
    return tuple(found)


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
        for one in passes:
            if not is_staged(one.kind):
                continue
            known = kind(one.kind)
            if "activation" in known.takes:
                live[one.stage] += 1
                peaks[tuple(live[stage] for stage in mine)] = None
            # I leaves as much for W as it frees.
            elif "weight" in known.frees or ("activation" in known.frees and not known.leaves):
                live[one.stage] -= 1
        result.append(tuple(one for one in peaks if not any(_below(one, two) for two in peaks)))
    return tuple(result)


def _below(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _held(stages: Sequence[StageCost], counts: Sequence[int]) -> int:
    pairs = zip(counts, stages, strict=True)
    return sum(n * (stage.activations + stage.logits) for n, stage in pairs)


def _with_vocabulary(one: RankMemory, words: LayerCost, layout: ParallelLayout) -> RankMemory:
    """Return a rank's memory with its part of a vocabulary that is spread over the pipeline."""
    parts = states(words.parameters, words.trained, layout)
    return replace(
        one,
        weights=one.weights + parts[0],
        gradients=one.gradients + parts[1],
        optimizer=one.optimizer + parts[2],
        logits=one.logits + words.logits_bytes,
        working=max(one.working, words.loss_bytes),
    )
