"""What a rank saves at most, when a program really runs, is what the simulator says."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from counterpoise.sched import Pass, Program, schedule, simulate, unit_costs
from counterpoise.sched.runtime.compiled import collectives, compile_program, lowered
from counterpoise.sched.runtime.execution.walk import Walker, walk
from counterpoise.sched.runtime.parts import MicrobatchData, ModelPart, StepData, TensorSpec
from counterpoise.sched.runtime.settings import StageOptions, StepLoss
from counterpoise.sched.runtime.stage.modules import Stages
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart
from tests.sched.runtime.loopback import Loopback
from tests.sched.runtime.models import Block, total_loss
from tests.sched.runtime.saved_bytes import Counting, Ledger

HIDDEN, WORDS, TOKENS = 8, 300, 16
RANKS, MICROBATCHES = 4, 8
# By schedule: the most microbatches (of a chunk) that a rank holds.
HELD = {"1f1b": 4, "zb-h1": 4, "v-half": 6, "1f1b-alg1": 6, "1f1b-alg2": 5}


def has(program: Program, kind: str) -> bool:
    return any(item.kind == kind for item in program.ranks[0])


def model(program: Program) -> tuple[list[nn.Module], nn.Embedding, nn.Linear]:
    """Stages, and the two layers that are theirs where the program does not divide them."""
    torch.manual_seed(0)
    embedding, head = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS)
    stages = [nn.Sequential(Block(), Block()) for _ in range(program.stages)]
    if not has(program, "IF"):
        stages[0].insert(0, embedding)
    if not program.barriers:
        stages[-1].append(head)
    return list(stages), embedding, head


def run(program: Program) -> list[Ledger]:
    """Run a step of equal microbatches on all ranks; return what each has counted."""
    stages, embedding, head = model(program)
    inputs = has(program, "IF")
    words = torch.arange(TOKENS) % WORDS
    microbatch = MicrobatchData(
        {"ids": words, "labels": words.roll(1)}, 0.1, TensorSpec((TOKENS, HIDDEN))
    )
    wanted = (inputs, *(True,) * program.stages)
    data = StepData((microbatch,) * program.microbatches, wanted)
    algorithm: Literal["alg1", "alg2"] = "alg1" if program.name.endswith("alg1") else "alg2"
    parallel = VocabParallel(head, embedding if inputs else None, algorithm=algorithm)
    loss = StepLoss(None if program.barriers else total_loss)
    options = StageOptions(inputs=("ids",))
    loop, ledgers, walks = Loopback(RANKS), [], []
    for rank in range(RANKS):
        own = {stage: stages[stage] for stage in program.stages_of(rank)}
        weights = [p for module in own.values() for p in module.parameters()]
        ledger = Ledger(frozenset(p.untyped_storage().data_ptr() for p in weights))
        counting = Counting(Stages(program, own, options, loss), ledger)
        parts: dict[str, ModelPart] = dict.fromkeys(counting.kinds, counting)
        if program.barriers:
            shard = parallel.shard(rank, RANKS)
            part = VocabularyPart(parallel, shard, reports_loss=not rank, words="ids")
            layers = Counting(part, ledger)
            parts |= dict.fromkeys(layers.kinds, layers)
        for one in dict.fromkeys(parts.values()):
            one.begin_step(data)
        walker = Walker(parts, loop.links(rank), collectives(program), reduce=lambda _: None)
        walks.append(walk(compile_program(program, rank, wanted), data, walker))
        ledgers.append(ledger)
    loop.run(walks)
    return ledgers


def profile(program: Program) -> dict[str, list[int]]:
    """Bytes of every buffer, measured on the first microbatch by itself."""
    rows = tuple(tuple(item for item in row if item.microbatch == 0) for row in program.ranks)
    ledgers = run(replace(program, microbatches=1, ranks=rows))
    change = {what: by for ledger in ledgers for what, by in ledger.changes().items()}

    def by(kind: str, count: int) -> NDArray[np.int64]:
        return np.array([change.get(Pass(at, kind, 0), 0) for at in range(count)])

    activation, rescaled = by("F", program.stages), by("C", RANKS)
    # I frees the activations when it leaves what W needs; C frees early products.
    weight = activation + by("I", program.stages) if has(program, "W") else 0 * activation
    found = {
        "activation": activation,
        "weight": weight,
        "logits": by("S", RANKS) + rescaled,
        "early": -rescaled,
        "words": by("IF", RANKS),
    }
    return {name: sizes.tolist() for name, sizes in found.items()}


@pytest.mark.parametrize(
    ("name", "inputs"),
    [*((name, False) for name in HELD), ("1f1b-alg1", True), ("1f1b-alg2", True)],
)
def test_the_most_that_is_saved_is_what_the_simulator_says(name: str, inputs: bool) -> None:
    options = {"inputs": True} if inputs else {}
    program = schedule(name, ranks=RANKS, microbatches=MICROBATCHES, **options)
    sizes = profile(program)
    assert all(any(sizes[name]) for name in buffers(program))
    pairs = zip(sizes["weight"], sizes["activation"], strict=True)
    assert all(left_for_w < saved for left_for_w, saved in pairs)
    expected = simulate(lowered(program), replace(unit_costs(10, 20, 3), buffer_bytes=sizes))
    ledgers = run(program)
    assert [ledger.most for ledger in ledgers] == pytest.approx(expected.peak_bytes, rel=0.02)
    assert [ledger.held for ledger in ledgers] == [0] * RANKS  # nothing is left after a step
    if not inputs:
        assert max(simulate(program, unit_costs(10, 20, 3)).peak_bytes) == HELD[name]


def buffers(program: Program) -> list[str]:
    """The names of the buffers that a program has, by its passes."""
    makers = {"F": "activation", "W": "weight", "S": "logits", "IF": "words"}
    early = ["early"] if program.name.endswith("alg2") else []
    return [name for kind, name in makers.items() if has(program, kind)] + early
