"""One rank's vocabulary passes in a step: what an executor calls, and what is held in between.

The executor runs `run(kind, microbatch, received)` for each pass, in any order that `check` lets
it, and does the collectives in between. It gives a pass what the barrier before it brought, and
takes what the barrier after it carries:

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .logits import Head
from .loss import Normalizer, Targets, make_targets, merge, microbatch_loss, statistics_dtype
from .output_passes import (
    LocalSoftmax,
    WeightGradients,
    gradients_of,
    pass_c,
    pass_e,
    pass_l,
    pass_s,
    pass_t,
)
from .parallel import VocabParallel
from .shard import VocabularyShard, add_embedding_gradient, look_up

# The passes of a microbatch's output layer, by algorithm.
OUTPUT_PASSES = {"alg1": ("S", "T"), "alg2": ("S", "C", "T"), "naive": ("L", "E", "G")}


@dataclass(frozen=True, slots=True)
class MicrobatchLabels:
    """One microbatch's part of the loss.

    `labels`: of any shape, one per token. `weight`: what each token's loss counts in the step's,
    such as one by the number of the step's label tokens. `words`: the input embedding's, where it
    is divided.
    """

    labels: Tensor
    weight: float
    words: Tensor | None = None


@dataclass(slots=True)
class _Open:
    """A microbatch between its first and its last pass of the output layer."""

    todo: set[str]
    local: LocalSoftmax
    normalizer: Normalizer | None = None


class VocabularyStep:
    """The vocabulary passes of one rank in one step.

    `shard`: the rank's parameters. `parallel`: algorithm, loss, what is kept. `batches`: the step's
    microbatches. `input_gradient`: whether anything before the output layer is trained; otherwise
    no pass returns a part of dX. `autocast`: the precision to compute in, if it is not the
    weights'; torch's own autocast has no effect. `training`: without it no pass adds to a gradient,
    and there is no C. `losses`: the loss of each microbatch whose
    statistics are there, a scalar, the same on every rank.
    """

    def __init__(
        self,
        shard: VocabularyShard,
        parallel: VocabParallel,
        batches: Sequence[MicrobatchLabels],
        *,
        input_gradient: bool = True,
        autocast: torch.dtype | None = None,
        training: bool = True,
    ) -> None:
        self.shard = shard
        self.parallel = parallel
        self.batches = batches
        self.input_gradient = input_gradient
        self.autocast = autocast
        self.training = training
        self.losses: dict[int, Tensor] = {}
        self._open: dict[int, _Open] = {}
        self._edges: dict[int, GradientEdge | None] = {}
        self._run: dict[str, Callable[[int, Tensor, Head], Tensor | None]] = {
            "S": self._s,
            "C": self._c,
            "T": self._t,
            "L": self._l,
            "E": self._e,
            "G": self._t,
        }

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision that passes compute in."""
        return self.autocast or self.shard.lm_head.weight.dtype

    def run(self, kind: str, microbatch: int, received: Tensor | None = None) -> Tensor | None:
        """Run a pass and return what the barrier after it carries, None for nothing.

        Raises ValueError for a pass that the algorithm does not have, and for one whose barrier or
        whose microbatch's earlier pass has not been run.
        """
        if kind == "IF":
            return self._look_up(microbatch)
        if kind == "IB":
            self._add_embedding_gradient(microbatch, received)
            return None
        wanted = OUTPUT_PASSES[self.parallel.algorithm]
        if kind not in wanted:
            raise ValueError(
                f"the schedule has {kind} passes, algorithm={self.parallel.algorithm!r} has "
                f"{', '.join(wanted)}; give VocabParallel the schedule's algorithm"
            )
        first = kind == wanted[0]
        if received is None or (not first and microbatch not in self._open):
            raise ValueError(f"{kind}{microbatch} runs before what it needs; check the program")
        head = self.shard.head(self.dtype)
        # torch's autocast would also lower the precision of the statistics.
        with torch.no_grad(), torch.autocast(received.device.type, enabled=False):
            found = self._run[kind](microbatch, received, head)
        self._close(kind, microbatch)
        return found

    def held_bytes(self) -> int:
        """Return the bytes that are held between passes now, each storage counted once."""
        held = [tensor for item in self._open.values() for tensor in _tensors(item)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        return sum(storages.values())

    def _look_up(self, microbatch: int) -> Tensor:
        words = self.batches[microbatch].words
        if words is None:
            raise ValueError(
                f"IF{microbatch} needs the microbatch's words; give them with its labels"
            )
        found, edge = look_up(words, self.shard.table())
        if self.training:
            self._edges[microbatch] = edge
        return found

    def _add_embedding_gradient(self, microbatch: int, received: Tensor | None) -> None:
        words = self.batches[microbatch].words
        if received is not None and words is not None:
            # Between stages a pack (1, tokens) of words is (tokens, hidden).
            received = received.reshape(*words.shape, received.shape[-1])
        add_embedding_gradient(self._edges.pop(microbatch), received)

    def _s(self, microbatch: int, received: Tensor, head: Head) -> Tensor:
        early = self.parallel.algorithm == "alg2" and self.input_gradient
        local = pass_s(
            *self._inputs(microbatch, received, head),
            head,
            self.parallel.loss,
            keep_logits=self._keeps_logits(),
            early=early,
        )
        self._open[microbatch] = _Open(self._todo(), local)
        return local.statistics

    def _l(self, microbatch: int, received: Tensor, head: Head) -> Tensor:
        hidden, targets = self._inputs(microbatch, received, head)
        keep = self.parallel.keep == "logits"
        local = pass_l(hidden, targets, head, self.parallel.loss, keep_logits=keep)
        self._open[microbatch] = _Open(self._todo(), local)
        return local.statistics

    def _e(self, microbatch: int, received: Tensor, head: Head) -> Tensor:
        item = self._open[microbatch]
        item.local = pass_e(item.local, received, head, self.parallel.loss)
        return item.local.statistics

    def _c(self, microbatch: int, received: Tensor, head: Head) -> Tensor | None:
        normalizer = self._normalize(microbatch, received)
        if not self.input_gradient:
            return None
        item = self._open[microbatch]
        found, item.local = pass_c(item.local, normalizer, head, self.parallel.loss)
        return self._to_sum(found, head)

    def _t(self, microbatch: int, received: Tensor, head: Head) -> Tensor | None:
        found = pass_t(
            self._open[microbatch].local,
            self._normalize(microbatch, received),
            head,
            self.parallel.loss,
            self._gradients(),
            input_gradient=self.input_gradient and self.parallel.algorithm != "alg2",
        )
        return None if found is None else self._to_sum(found, head)

    def _todo(self) -> set[str]:
        """Return the passes of a microbatch, after which nothing of it is held."""
        passes = set(OUTPUT_PASSES[self.parallel.algorithm])
        return passes if self.training else passes - {"C"}

    def _gradients(self) -> WeightGradients:
        if not self.training:
            return WeightGradients(None, None)
        return gradients_of(self.shard.lm_head.weight, self.shard.lm_head.bias)

    def _inputs(self, microbatch: int, received: Tensor, head: Head) -> tuple[Tensor, Targets]:
        """Return X as (tokens, hidden), and the shard's targets."""
        batch = self.batches[microbatch]
        targets = make_targets(
            batch.labels.flatten(),
            self.parallel.loss,
            size=head.size,
            start=head.start,
            real=head.real,
            weight=batch.weight,
            dtype=statistics_dtype(head.weight.dtype),
        )
        return received.detach().flatten(0, -2).to(head.weight.dtype), targets

    def _to_sum(self, part: Tensor, head: Head) -> Tensor:
        """Return a part of dX in the precision in which parts are added up."""
        return part if self.parallel.gradient_sum == "single" else part.to(head.weight.dtype)

    def _keeps_logits(self) -> bool:
        """Return whether T will need the logits and is to find them."""
        rows = self.shard.lm_head
        trained = any(parameter.requires_grad for parameter in rows.parameters())
        needed = (trained and self.training) or (
            self.input_gradient and self.parallel.algorithm == "alg1"
        )
        return needed and self.parallel.keep == "logits"

    def _normalize(self, microbatch: int, gathered: Tensor) -> Normalizer:
        """Return the microbatch's normalizer, computed once from all ranks' statistics."""
        item = self._open[microbatch]
        if item.normalizer is None:
            size = self.shard.lm_head.sharding.size
            item.normalizer = merge(gathered, size, self.parallel.loss)
            self.losses[microbatch] = microbatch_loss(item.normalizer, item.local.targets)
        return item.normalizer

    def _close(self, kind: str, microbatch: int) -> None:
        """Drop what a microbatch holds once all of its passes are over."""
        todo = self._open[microbatch].todo
        todo.discard(kind)
        if not todo:
            del self._open[microbatch]


def _tensors(item: _Open) -> Iterator[Tensor]:
    """Yield what a microbatch holds between its passes."""
    local = item.local
    yield from (local.hidden, local.statistics)
    yield from (local.targets.column, local.targets.owned, local.targets.weight)
    if local.logits is not None:
        yield local.logits
    if local.early is not None:
        yield local.early.attraction
        if local.early.smoothing is not None:
            yield local.early.smoothing
    if item.normalizer is not None:
        yield from (item.normalizer.log_normalizer, item.normalizer.losses)
