"""The vocabulary layers as a part of the model that the executor runs."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...ir.program import Pass, Program
from ..parts import ELSEWHERE, Given, Made, MicrobatchData, StepData
from .parallel import VocabParallel
from .shard import VocabularyShard
from .step import OUTPUT_PASSES, MicrobatchLabels, VocabularyStep

# The barrier whose result a pass is given. C, T and G are given CS.
_RECEIVED = {"S": "CX", "L": "CX", "E": "CM", "IB": "CJ"}


def refuse_other_passes(program: Program, parallel: VocabParallel) -> None:
    """Raise ValueError if a program's passes are those of another algorithm, or other layers."""
    kinds = {item.kind for row in program.ranks for item in row}
    # Algorithm 2's sum of gradients follows the statistics, Algorithm 1's its T.
    early = any(barrier.source == "barrier" for barrier in program.barriers)
    found = "naive" if "L" in kinds else "alg2" if early else "alg1"
    if found != parallel.algorithm:
        raise ValueError(
            f"the schedule {program.name!r} has the passes of {found!r}; give "
            f"VocabParallel(..., algorithm={found!r}), not {parallel.algorithm!r}"
        )
    if ("IF" in kinds) != (parallel.embedding is not None):
        raise ValueError(
            "input passes and VocabParallel's embedding go together; give both, with "
            "options={'inputs': True}, or none"
        )


class VocabularyPart:
    """Runs the vocabulary passes of one rank, with plain tensors in and out.

    `parallel`: the layers and options, `shard`: this rank's parameters (`parallel.shard`).
    `reports_loss`: whether this rank returns the step's loss; one rank of a pipeline does.
    `autocast`: the precision to compute in, if it is not the weights'.
    `labels`, `words`: the fields of a microbatch that hold labels and, where the embedding is
    divided, words; every pipeline rank needs them.
    """

    def __init__(
        self,
        parallel: VocabParallel,
        shard: VocabularyShard,
        *,
        reports_loss: bool,
        autocast: torch.dtype | None = None,
        labels: str = "labels",
        words: str = "input_ids",
    ) -> None:
        self.parallel = parallel
        self.shard = shard
        self.reports_loss = reports_loss
        self.autocast = autocast
        self.fields = {"labels": labels} | ({"words": words} if shard.embedding else {})
        self._running: tuple[StepData, VocabularyStep] | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of passes of the algorithm, with the embedding's if it is divided."""
        inputs = ("IF", "IB") if self.shard.embedding is not None else ()
        return frozenset((*OUTPUT_PASSES[self.parallel.algorithm], *inputs))

    def begin_step(self, data: StepData) -> None:
        """Take the microbatches of a step."""
        step = VocabularyStep(
            self.shard,
            self.parallel,
            [self._batch(number, item) for number, item in enumerate(data.microbatches)],
            input_gradient=data.input_gradient[-1],
            autocast=self.autocast,
            training=data.training,
        )
        self._running = data, step

    def run_pass(self, what: Pass, given: Given) -> Made:
        """Run one pass. Parts of X and dX have the shape of `hidden`, parts of X its precision."""
        data, step = self._in_step()
        received = given.get(_RECEIVED.get(what.kind, "CS"))
        made = step.run(what.kind, what.microbatch, received)
        if made is None:
            return {}
        hidden = data.microbatches[what.microbatch].hidden
        if what.kind in ("IF", "C", "T", "G"):
            made = made.reshape(hidden.shape)
        if what.kind == "IF":
            made = made.to(hidden.dtype)
        return {what.kind: made}

    def finish_step(self) -> Tensor | None:
        """End the step, and return its loss on the rank that reports it."""
        losses = list(self._in_step()[1].losses.values())
        self._running = None
        if not self.reports_loss or not losses:
            return None
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def held_bytes(self) -> int:
        """Return the bytes that are held between passes now, each storage counted once."""
        return self._in_step()[1].held_bytes()

    def modules(self) -> Iterable[nn.Module]:
        """Return the shard."""
        return (self.shard,)

    def _in_step(self) -> tuple[StepData, VocabularyStep]:
        if self._running is None:
            raise RuntimeError("no step is running; call begin before passes are run")
        return self._running

    def _batch(self, number: int, item: MicrobatchData) -> MicrobatchLabels:
        if item is ELSEWHERE:
            return MicrobatchLabels(torch.empty(0), 0.0)
        found = {}
        for use, name in self.fields.items():
            if name not in item.fields:
                raise ValueError(
                    f"microbatch {number} has no field {name!r} ({', '.join(item.fields)}); with "
                    f"vocabulary passes every pipeline rank needs the {use}"
                )
            found[use] = item.fields[name]
        return MicrobatchLabels(found["labels"], item.weight, found.get("words"))
