"""Small models cut into stages, a one-process reference, and programs run on all ranks at once."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from counterpoise.sched import Program
from counterpoise.sched.runtime.compiled import (
    collectives,
    compile_program,
    lowered,
    with_deliveries,
)
from counterpoise.sched.runtime.execution.walk import Walker, walk
from counterpoise.sched.runtime.parts import MicrobatchData, StepData, TensorSpec
from counterpoise.sched.runtime.settings import StageOptions, StepLoss
from counterpoise.sched.runtime.stage.modules import Stages
from tests.sched.runtime.loopback import Loopback

HIDDEN, WORDS = 8, 11
# Which stages are trained.
FROZEN: dict[str, Callable[[range], Sequence[int]]] = {
    "nothing frozen": lambda stages: stages,
    "frozen first": lambda stages: stages[1:],
    "frozen middle": lambda stages: (stages[0], stages[-1]),
    "only the head": lambda stages: stages[-1:],
}


class Block(nn.Module):
    """A residual block; the output of its last layer is what W is put off for."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class NamedStage(nn.Module):
    """A stage of embedding, blocks and head, whose tensors have the whole model's names."""

    def __init__(
        self, embedding: nn.Module, blocks: Sequence[nn.Module], head: nn.Module, at: int, of: int
    ) -> None:
        super().__init__()
        own = range(at * len(blocks) // of, (at + 1) * len(blocks) // of)
        self.embedding = embedding if at == 0 else None
        self.layers = nn.ModuleDict({str(number): blocks[number] for number in own})
        self.lm_head = head if at == of - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.lm_head is None else self.lm_head(x)


def make_stages(count: int, seed: int = 0) -> list[nn.Module]:
    """Embedding and block, blocks, block and head: in double precision, so errors are of order."""
    torch.manual_seed(seed)
    stages: list[list[nn.Module]] = [[Block()] for _ in range(count)]
    stages[0].insert(0, nn.Embedding(WORDS, HIDDEN))
    stages[-1].append(nn.Linear(HIDDEN, WORDS))
    return [nn.Sequential(*stage).double() for stage in stages]


def freeze(stages: Sequence[nn.Module], frozen: str) -> None:
    trained = FROZEN[frozen](range(len(stages)))
    for number, stage in enumerate(stages):
        stage.requires_grad_(number in trained)


def total_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


@dataclass(frozen=True)
class Batches:
    """Token ids and labels of every microbatch, and each one's weight."""

    ids: list[Tensor]
    labels: list[Tensor]

    @property
    def weight(self) -> float:
        return 1.0 / sum(map(len, self.ids))

    def data(self, wanted: tuple[bool, ...], dtype=torch.float64) -> StepData:
        return StepData(
            tuple(
                MicrobatchData(
                    {"ids": ids, "labels": labels},
                    self.weight,
                    TensorSpec((len(ids), HIDDEN), dtype),
                )
                for ids, labels in zip(self.ids, self.labels, strict=True)
            ),
            wanted,
        )


def make_batches(microbatches: int, *, equal: bool, seed: int = 0) -> Batches:
    draw = random.Random(seed)
    sizes = [4 if equal else draw.randint(1, 9) for _ in range(microbatches)]
    generator = torch.Generator().manual_seed(seed)
    ids, labels = (
        [torch.randint(WORDS, (n,), generator=generator) for n in sizes] for _ in range(2)
    )
    return Batches(ids, labels)


def gradient_wanted(stages: Sequence[nn.Module]) -> tuple[bool, ...]:
    trained = [any(p.requires_grad for p in stage.parameters()) for stage in stages]
    return tuple(any(trained[:n]) for n in range(len(stages) + 1))


def reference(stages: Sequence[nn.Module], batches: Batches) -> float:
    """Leave the gradients of one process on the stages, and return the loss."""
    total = 0.0
    for ids, labels in zip(batches.ids, batches.labels, strict=True):
        loss = total_loss(nn.Sequential(*stages)(ids), labels) * batches.weight
        loss.backward()
        total += loss.item()
    return total


def run_program(
    program: Program,
    stages: Sequence[nn.Module],
    batches: Batches,
    *,
    rendezvous: bool = True,
    wait_sends: bool = False,
    choose: Callable[[list[int]], int] = min,
    **options,
) -> float:
    """Run a program on all ranks in this process, and return the loss."""
    wanted = gradient_wanted(stages)
    ranks = len(program.ranks)
    loop = Loopback(ranks, rendezvous=rendezvous)
    run, loss = StageOptions(inputs=("ids",), **options), StepLoss(total_loss)
    parts = [
        Stages(program, {s: stages[s] for s in program.stages_of(rank)}, run, loss)
        for rank in range(ranks)
    ]
    data = batches.data(wanted)
    walks, reduced = [], []
    program = lowered(program)
    lists = with_deliveries([compile_program(program, rank, wanted) for rank in range(ranks)])
    for rank, part in enumerate(parts):
        part.begin_step(data)
        walker = Walker(
            dict.fromkeys(part.kinds, part),
            loop.links(rank),
            collectives(program),
            reduce=reduced.append,
            wait_sends=wait_sends,
        )
        walks.append(walk(lists[rank], data, walker))
    loop.run(walks, choose)
    losses = [found for part in parts if (found := part.finish_step()) is not None]
    return float(sum(losses))


def worst_error(stages: Sequence[nn.Module], expected: Sequence[nn.Module]) -> float:
    """Return the largest relative error of any parameter's gradient; both must have the same."""
    worst = 0.0
    for stage, other in zip(stages, expected, strict=True):
        for (name, ours), theirs in zip(stage.named_parameters(), other.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), f"{name}: one has no gradient"
            if ours.grad is not None and theirs.grad is not None:
                scale = theirs.grad.abs().max() + 1e-30
                worst = max(worst, float((ours.grad - theirs.grad).abs().max() / scale))
    return worst


def copies(stages: Sequence[nn.Module]) -> list[nn.Module]:
    return [copy.deepcopy(stage) for stage in stages]
