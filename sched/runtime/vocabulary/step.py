"""One rank's vocabulary passes: what a step runs and holds in between, and the executor's part.

A part is given `run(kind, microbatch, received)` for each pass, in any order that `check` lets it,
and the collectives in between are done by the executor. A pass is given what the barrier before it
brought, and returns what the barrier after it carries:

    kind  receives                     returns
    IF    -                            its part of the embedding (*words, hidden), for a sum (CI)
    S     X of the last stage (CX)     statistics (3 or 4, tokens), to gather (CS)
    C     all ranks' statistics (CS)   its part of dX (tokens, hidden), for a sum (CG)
    T     all ranks' statistics (CS)   Algorithm 1: its part of dX; Algorithm 2: nothing
    L     X of the last stage (CX)     maxima (1, tokens), to gather (CM)
    E     all ranks' maxima (CM)       statistics, to gather (CS)
    G     all ranks' statistics (CS)   its part of dX, for a sum (CG)
    IB    the embedding's gradient (CJ)   nothing

Gradients are added to `.grad` of the shard's parameters at once, without autograd where there are
logits: hooks on the output layer's parameters do not fire (those of the embedding do).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ...ir.program import Pass, Program
from ..parts import Given, Made, StepData
from .loss import Targets, make_targets, merge, statistics_dtype
from .output_passes import Head, LocalSoftmax, pass_c, pass_e, pass_l, pass_s, pass_t
from .shard import Algorithm, VocabParallel, VocabularyShard

# The passes of a microbatch's output layer, by algorithm.
OUTPUT_PASSES = {"alg1": ("S", "T"), "alg2": ("S", "C", "T"), "naive": ("L", "E", "G")}
# The barrier whose result a pass is given. C, T and G are given CS.
_RECEIVED = {"S": "CX", "L": "CX", "E": "CM", "IB": "CJ"}


@dataclass(slots=True)
class _Open:
    """A microbatch between its first and its last pass of the output layer."""

    todo: set[str]
    local: LocalSoftmax
    log_normalizer: Tensor | None = None


def find_algorithm(program: Program) -> Algorithm:
    """Return the algorithm whose passes a program has."""
    kinds = {item.kind for row in program.ranks for item in row}
    # Algorithm 2's sum of gradients follows the statistics, Algorithm 1's its T.
    early = any(barrier.source == "barrier" for barrier in program.barriers)
    return "naive" if "L" in kinds else "alg2" if early else "alg1"


def refuse_other_passes(program: Program, parallel: VocabParallel) -> None:
    """Raise ValueError if a program's passes are those of another algorithm, or other layers."""
    kinds = {item.kind for row in program.ranks for item in row}
    algorithm = find_algorithm(program)
    if algorithm != parallel.algorithm:
        raise ValueError(
            f"the schedule {program.name!r} has the passes of {algorithm!r}; give "
            f"VocabParallel(..., algorithm={algorithm!r}), not {parallel.algorithm!r}"
        )
    if ("IF" in kinds) != (parallel.embedding is not None):
        raise ValueError(
            "input passes and VocabParallel's embedding go together; give both, with "
            f"schedule=partial(schedule, {program.name!r}, inputs=True), or none"
        )


@dataclass(eq=False, slots=True)
class VocabularyPart:
    """Runs the vocabulary passes of one rank, with plain tensors in and out.

    `parallel`: the layers and options, `shard`: this rank's parameters (`parallel.shard`).
    `reports_loss`: whether this rank returns the step's loss; one rank of a pipeline does.
    `autocast`: the precision to compute in, if it is not the weights'; torch's own autocast has no
    effect. `labels`, `words`: the fields of a microbatch that hold labels, one per token, and,
    where the embedding is divided, words; every pipeline rank needs them. `losses`: of the step,
    the loss of each microbatch whose statistics are there, a scalar, the same on every rank.
    """

    parallel: VocabParallel
    shard: VocabularyShard
    reports_loss: bool
    autocast: torch.dtype | None = None
    labels: str = "labels"
    words: str = "input_ids"
    losses: dict[int, Tensor] = field(default_factory=dict)
    # What microbatches hold between their passes.
    open: dict[int, _Open] = field(default_factory=dict)
    _edges: dict[int, GradientEdge | None] = field(default_factory=dict)
    _data: StepData = field(default_factory=lambda: StepData((), ()))

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields that every pipeline rank needs, by what they are for."""
        return {"labels": self.labels} | ({"words": self.words} if self.shard.embedding else {})

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of passes of the algorithm, with the embedding's if it is divided."""
        inputs = ("IF", "IB") if self.shard.embedding is not None else ()
        return frozenset((*OUTPUT_PASSES[self.parallel.algorithm], *inputs))

    def begin_step(self, data: StepData) -> None:
        """Take the microbatches of a step."""
        self._data, self.losses, self.open, self._edges = data, {}, {}, {}

    def run_pass(self, pass_: Pass, reads: Given) -> Made:
        """Run one pass. Parts of X and dX have the shape of `hidden`, parts of X its precision."""
        part = self.run(pass_.kind, pass_.microbatch, reads.get(_RECEIVED.get(pass_.kind, "CS")))
        if part is None:
            return {}
        microbatch = self._data.microbatches[pass_.microbatch]
        hidden = microbatch.ends or microbatch.hidden
        if pass_.kind in ("IF", "C", "T", "G"):
            part = part.reshape(hidden.shape)
        if pass_.kind == "IF":
            part = part.to(hidden.dtype)
        return {pass_.kind: part}

    def finish_step(self) -> Tensor | None:
        """End the step, and return its loss on the rank that reports it."""
        losses = list(self.losses.values())
        if not self.reports_loss or not losses:
            return None
        return sum(losses[1:], losses[0])

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision that passes compute in."""
        return self.autocast or self.shard.lm_head.weight.dtype

    def run(self, kind: str, microbatch: int, received: Tensor | None = None) -> Tensor | None:
        """Run a pass and return what the barrier after it carries, None for nothing."""
        if kind == "IF":
            return self._look_up(microbatch)
        if kind == "IB":
            edge = self._edges.pop(microbatch)
            # There is none for a frozen weight.
            if edge is not None and received is not None:
                words = self._data.microbatches[microbatch].fields[self.words]
                # Between stages a pack (1, tokens) of words is (tokens, hidden).
                received = received.reshape(*words.shape, received.shape[-1])
                torch.autograd.backward([edge], [received])
            return None
        assert received is not None  # by the checked program's barrier
        head = self.shard.head(self.dtype)
        # torch's autocast would also lower the precision of the statistics.
        with torch.no_grad(), torch.autocast(received.device.type, enabled=False):
            begins = kind == OUTPUT_PASSES[self.parallel.algorithm][0]
            run = self._begin if begins else self._continue
            part = run(kind, microbatch, received, head)
        item = self.open[microbatch]
        item.todo.discard(kind)
        if not item.todo:
            del self.open[microbatch]
        return part

    def _look_up(self, microbatch: int) -> Tensor:
        embedded, edge = self.shard.look_up(self._data.microbatches[microbatch].fields[self.words])
        if self._data.training:
            self._edges[microbatch] = edge
        return embedded

    def _begin(self, kind: str, microbatch: int, received: Tensor, head: Head) -> Tensor:
        """Run S or L, the first pass of a microbatch, and return what all shards gather."""
        hidden, targets = self._inputs(microbatch, received, head)
        loss, keep = self.parallel.loss, self.parallel.keep == "logits"
        needs_gradient, training = self._data.input_gradient[-1], self._data.training
        if kind == "S":
            # T needs logits for the weights' gradients, and Algorithm 1's for dX too.
            trained = any(p.requires_grad for p in self.shard.lm_head.parameters())
            late = needs_gradient and self.parallel.algorithm == "alg1"
            keep = keep and ((trained and training) or late)
            early = self.parallel.algorithm == "alg2" and needs_gradient
            local = pass_s(hidden, targets, head, loss, keep_logits=keep, early=early)
        else:
            local = pass_l(hidden, targets, head, loss, keep_logits=keep)
        todo = set(OUTPUT_PASSES[self.parallel.algorithm])
        self.open[microbatch] = _Open(todo if training else todo - {"C"}, local)
        return local.statistics

    def _continue(self, kind: str, microbatch: int, received: Tensor, head: Head) -> Tensor | None:
        """Run E, C, T or G, which are given what all shards have gathered."""
        item, loss = self.open[microbatch], self.parallel.loss
        needs_gradient = self._data.input_gradient[-1]
        if kind == "E":
            item.local = pass_e(item.local, received, head, loss)
            return item.local.statistics
        log_z = item.log_normalizer
        if log_z is None:
            log_z, self.losses[microbatch] = merge(received, head.size, item.local.targets, loss)
            item.log_normalizer = log_z
        if kind != "C":
            late = needs_gradient and self.parallel.algorithm != "alg2"
            rows = self.shard.lm_head
            into = self._gradient(rows.weight), self._gradient(rows.bias)
            part = pass_t(item.local, log_z, head, loss, into, input_gradient=late)
        elif needs_gradient:
            part, item.local = pass_c(item.local, log_z, head, loss)
        else:
            part = None
        if part is None or self.parallel.gradient_sum == "single":
            return part
        return part.to(head.weight.dtype)

    def _gradient(self, parameter: nn.Parameter | None) -> Tensor | None:
        """Return the `.grad` to add to, made here if there is none yet; None of what is frozen."""
        if parameter is None or not parameter.requires_grad or not self._data.training:
            return None
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def _inputs(self, microbatch: int, received: Tensor, head: Head) -> tuple[Tensor, Targets]:
        """Return X as (tokens, hidden), and the shard's targets."""
        batch = self._data.microbatches[microbatch]
        targets = make_targets(
            batch.fields[self.labels].flatten(),
            self.parallel.loss,
            size=head.size,
            start=head.start,
            real=head.real,
            weight=batch.weight,
            dtype=statistics_dtype(head.weight.dtype),
        )
        return received.detach().flatten(0, -2).to(head.weight.dtype), targets
