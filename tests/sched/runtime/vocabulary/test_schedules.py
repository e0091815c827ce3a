"""Every schedule with vocabulary passes, on all ranks of a loopback: gradients of one process."""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched import Program, schedule, schedules
from counterpoise.sched.runtime.compiled import collectives, compile_program
from counterpoise.sched.runtime.execution.walk import Walker, walk
from counterpoise.sched.runtime.parts import ModelPart
from counterpoise.sched.runtime.settings import StageOptions
from counterpoise.sched.runtime.stage.modules import Stages
from counterpoise.sched.runtime.vocabulary.loss import LossOptions
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel, VocabularyShard
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart
from tests.sched.runtime import models
from tests.sched.runtime.loopback import Loopback
from tests.sched.runtime.models import Batches, Block, make_batches, worst_error
from tests.sched.runtime.vocabulary.cases import OPTIONS
from tests.sched.runtime.vocabulary.one_process import error, l2_error, labelled, loss_of
from tests.sched.runtime.vocabulary.shards import joined

FORMS = ("alg1", "alg2", "naive")
# Which pieces are trained, of the embedding (-1), the stages (from 0) and the head (the last).
FROZEN: dict[str, Callable[[range], Sequence[int]]] = {
    "nothing frozen": lambda pieces: pieces,
    "frozen first": lambda pieces: pieces[2:],
    "frozen middle": lambda pieces: (*pieces[:2], *pieces[-2:]),
    "only the head": lambda pieces: pieces[-1:],
    "frozen head": lambda pieces: pieces[:-1],
}
CASES = [
    (item.name, inputs)
    for item in schedules()
    if item.name.endswith(FORMS) or item.name == "1f1b-interlaced"
    for inputs in ((False, True) if "inputs" in item.options else (False,))
]


@dataclass(frozen=True)
class Model:
    """A language model in pieces: at -1 the embedding, then the stages, then the head."""

    embedding: nn.Embedding
    stages: list[nn.Module]
    head: nn.Linear

    @property
    def pieces(self) -> list[nn.Module]:
        return [self.embedding, *self.stages, self.head]


def make_model(stages: int, tied: bool, dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(0)
    model = Model(
        nn.Embedding(models.WORDS, models.HIDDEN).to(dtype),
        [Block().to(dtype) for _ in range(stages)],
        nn.Linear(models.HIDDEN, models.WORDS, bias=not tied).to(dtype),
    )
    if tied:
        model.embedding.weight = model.head.weight
    return model


def freeze(model: Model, frozen: str) -> None:
    pieces = model.pieces
    trained = FROZEN[frozen](range(-1, len(pieces) - 1))
    for at, piece in enumerate(pieces, start=-1):
        piece.requires_grad_(at in trained)


def reference(model: Model, batches: Batches, loss: LossOptions) -> float:
    """Leave the gradients of one process on the model, and return the loss."""
    total = 0.0
    for ids, labels in zip(batches.ids, batches.labels, strict=True):
        logits = nn.Sequential(*model.pieces)(ids)
        found = loss_of(logits, labelled(labels, batches.weight), loss)
        found.backward()
        total += found.item()
    return total


def gradient_wanted(model: Model) -> tuple[bool, ...]:
    """Whether each stage's input gradient is wanted, and at the end the last stage's output's."""
    pieces = model.pieces[:-1]
    trained = [any(p.requires_grad for p in piece.parameters()) for piece in pieces]
    return tuple(any(trained[: n + 1]) for n in range(len(pieces)))


def run_program(
    program: Program,
    model: Model,
    parallel: VocabParallel,
    batches: Batches,
    choose: Callable[[list[int]], int],
    dtype: torch.dtype = torch.float64,
) -> tuple[float, list[VocabularyShard]]:
    """Run a step on all ranks in this process; return the loss and the shards."""
    ranks, wanted = len(program.ranks), gradient_wanted(model)
    data = batches.data(wanted, dtype)
    stages = dict(enumerate(model.stages))
    if parallel.embedding is None:
        stages[0] = nn.Sequential(model.embedding, stages[0])
    loop, walks, parts = Loopback(ranks), [], []
    for rank in range(ranks):
        own = {stage: stages[stage] for stage in program.stages_of(rank)}
        vocabulary = VocabularyPart(
            parallel,
            parallel.shard(rank, ranks),
            reports_loss=rank == program.placement[-1],
            words="ids",
        )
        of_rank: list[ModelPart] = [Stages(program, own, StageOptions(inputs=("ids",))), vocabulary]
        parts += of_rank
        for part in of_rank:
            part.begin_step(data)
        walker = Walker(
            {kind: part for part in of_rank for kind in part.kinds},
            loop.links(rank),
            collectives(program),
            reduce=lambda _: None,
        )
        walks.append(walk(compile_program(program, rank, wanted), data, walker))
    loop.run(walks, choose)
    losses = [found.item() for part in parts if (found := part.finish_step()) is not None]
    assert len(losses) == 1
    shards = [part.shard for part in parts if isinstance(part, VocabularyPart)]
    return losses[0], shards


def compare(
    name: str,
    inputs: bool,
    *,
    ranks: int = 2,
    frozen: str = "nothing frozen",
    equal: bool = False,
    tied: bool = False,
    keep: str = "logits",
    loss: LossOptions = OPTIONS["plain"],
) -> None:
    """Run a schedule and one process on the same model, and compare all gradients."""
    options = {"inputs": True} if inputs else {}
    program = schedule(name, ranks=ranks, microbatches=2 * ranks, **options)
    model = make_model(program.stages, tied)
    freeze(model, frozen)
    batches = make_batches(program.microbatches, equal=equal)
    algorithm = "alg1" if name.endswith("interlaced") else name.rpartition("-")[2]
    parallel = VocabParallel(
        model.head,
        model.embedding if inputs else None,
        algorithm=algorithm,  # type: ignore[arg-type]
        keep=keep,  # type: ignore[arg-type]
        loss=loss,
    )
    expected = copy.deepcopy(model)
    wanted = reference(expected, batches, loss)
    draw = random.Random(ranks)
    found, shards = run_program(program, model, parallel, batches, draw.choice)
    assert found == pytest.approx(wanted, 1e-12)
    assert worst_error(model.stages, expected.stages) < 1e-9
    pairs = [(joined(shards, "weight"), expected.head.weight.grad)]
    if expected.head.bias is not None:
        pairs.append((joined(shards, "bias"), expected.head.bias.grad))
    ours = joined(shards, "weight", "embedding") if inputs else model.embedding.weight.grad
    pairs.append((ours, expected.embedding.weight.grad))
    for one, other in pairs:
        assert (one is None) == (other is None)
        assert other is None or error(one, other) < 1e-9


def _frozen_cases() -> Iterator[Any]:
    """Yield every schedule, what is frozen, and 2 or 4 ranks; without `long` a pairwise subset."""
    for at, ((name, inputs), (nth, frozen)) in enumerate(product(CASES, enumerate(FROZEN))):
        four = at // len(FROZEN) % len(FROZEN) == nth
        for ranks in (2, 4):
            marks = () if (ranks == 4) == four else (pytest.mark.long,)
            label = f"{name}{'-inputs' if inputs else ''}-{frozen}-{ranks}"
            yield pytest.param(name, inputs, frozen, ranks, marks=marks, id=label)


@pytest.mark.parametrize(("name", "inputs", "frozen", "ranks"), list(_frozen_cases()))
def test_gradients_and_loss_are_those_of_one_process(
    name: str, inputs: bool, frozen: str, ranks: int
) -> None:
    compare(name, inputs, ranks=ranks, frozen=frozen)


@pytest.mark.parametrize("keep", ["logits", "nothing"])
@pytest.mark.parametrize(("name", "inputs"), CASES)
def test_any_loss_and_equal_microbatches(name: str, inputs: bool, keep: str) -> None:
    compare(name, inputs, equal=True, keep=keep, loss=OPTIONS["all"])


@pytest.mark.parametrize("name", [f"1f1b-{form}" for form in FORMS] + ["v-half-alg2"])
def test_a_tied_weight_gets_both_gradients(name: str) -> None:
    compare(name, inputs=True, tied=True, ranks=4)


def _gradients(model: Model) -> list[Tensor]:
    found = [p.grad for piece in model.pieces for p in piece.parameters()]
    assert not any(grad is None for grad in found)
    return [grad for grad in found if grad is not None]


@pytest.mark.parametrize("name", [f"1f1b-{form}" for form in FORMS] + ["v-half-alg2"])
def test_bf16_errors_are_at_most_half_more_than_those_of_one_process(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With fewer values in a tensor, chance decides whose error is larger.
    monkeypatch.setattr(models, "HIDDEN", 64)
    monkeypatch.setattr(models, "WORDS", 300)
    program = schedule(name, ranks=4, microbatches=8, inputs=True)
    model = make_model(program.stages, False, torch.bfloat16)
    one, exact = copy.deepcopy(model), copy.deepcopy(model)
    for piece in exact.pieces:
        piece.float()
    ids = [torch.randint(models.WORDS, (30 + m,)) for m in range(8)]
    batches = Batches(ids, [words.roll(-1) for words in ids])
    for whole in (one, exact):
        reference(whole, batches, OPTIONS["plain"])
    parallel = VocabParallel(
        model.head,
        model.embedding,
        algorithm=name.rpartition("-")[2],  # type: ignore[arg-type]
    )
    choose = random.Random(0).choice
    _, shards = run_program(program, model, parallel, batches, choose, torch.bfloat16)
    model.embedding.weight.grad = joined(shards, "weight", "embedding")
    model.head.weight.grad = joined(shards, "weight")
    model.head.bias.grad = joined(shards, "bias")
    triples = zip(_gradients(model), _gradients(one), _gradients(exact), strict=True)
    ratios = [l2_error(a, wanted) / l2_error(b, wanted) for a, b, wanted in triples]
    assert max(ratios) <= 1.5, ratios
