"""All shards of a vocabulary in one process: collectives are a stack, a sum, a copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from counterpoise.sched.runtime.parts import MicrobatchData
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel, VocabularyShard
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart
from tests.sched.runtime.vocabulary.one_process import Wanted, begun

# What a microbatch's passes need: they run in any order that keeps this one.
NEEDS = {"S": (), "C": ("S",), "T": ("S",), "L": (), "E": ("L",), "G": ("E",)}
PASSES = {"alg1": "ST", "alg2": "SCT", "naive": "LEG"}


@dataclass(frozen=True)
class Outcome:
    """What shards found, joined and without padding, and the steps for those who look closer."""

    found: Wanted
    shards: list[VocabularyShard]
    steps: list[VocabularyPart]


def an_order(algorithm: str, microbatches: int, seed: int) -> list[tuple[str, int]]:
    """An order of the passes of all microbatches, drawn from a seed."""
    random = Random(seed)
    left = [(kind, m) for kind in PASSES[algorithm] for m in range(microbatches)]
    row: list[tuple[str, int]] = []
    while left:
        ready = [(k, m) for k, m in left if all((need, m) in row for need in NEEDS[k])]
        row.append(random.choice(ready))
        left.remove(row[-1])
    return row


def run_shards(
    parallel: VocabParallel,
    hidden: Sequence[Tensor],
    batches: Sequence[MicrobatchData],
    *,
    ranks: int,
    seed: int = 0,
    input_gradient: bool = True,
    autocast: torch.dtype | None = None,
) -> Outcome:
    """Run the output layer's passes of all microbatches on all shards, in an order from a seed."""
    shards = [parallel.shard(rank, ranks) for rank in range(ranks)]
    steps = [
        begun(s, parallel, batches, input_gradient=input_gradient, autocast=autocast)
        for s in shards
    ]
    gathered: dict[tuple[str, int], Tensor] = {}
    inputs: list[Tensor | None] = [None] * len(batches)
    for kind, m in an_order(parallel.algorithm, len(batches), seed):
        received = {"S": hidden[m], "L": hidden[m], "E": gathered.get(("L", m))}.get(
            kind, gathered.get(("S", m), gathered.get(("E", m)))
        )
        sent = [step.run(kind, m, received) for step in steps]
        if kind in "SLE":
            gathered[kind, m] = torch.stack([part for part in sent if part is not None])
        elif sent[0] is not None:
            total = sum(part for part in sent if part is not None)
            assert isinstance(total, Tensor)
            inputs[m] = total.reshape(hidden[m].shape)
    losses = [steps[0].losses[m] for m in range(len(batches))]
    found = Wanted(losses, inputs, joined(shards, "weight"), joined(shards, "bias"))
    return Outcome(found, shards, steps)


def joined(shards: Sequence[VocabularyShard], name: str, layer: str = "lm_head") -> Tensor | None:
    """The gradient of a parameter of all shards, without padding; None without the parameter."""
    rows = [getattr(shard, layer) for shard in shards]
    grads = [parameter.grad for item in rows if (parameter := getattr(item, name)) is not None]
    if not grads or any(grad is None for grad in grads):
        return None
    return torch.cat([grad for grad in grads if grad is not None])[: rows[0].sharding.size]
