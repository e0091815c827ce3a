"""What a rank saves at most, when a program really runs, is what the simulator says."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import nn

from counterpoise.sched import Program, schedule, simulate, unit_costs
from counterpoise.sched.runtime.compiled import collectives, compile_program
from counterpoise.sched.runtime.execution import Walker, walk
from counterpoise.sched.runtime.links import Loopback
from counterpoise.sched.runtime.parts import MicrobatchData, ModelPart, StepData, TensorSpec
from counterpoise.sched.runtime.stage import StageOptions, Stages
from counterpoise.sched.runtime.vocabulary import VocabParallel, VocabularyPart
from tests.sched.runtime.models import Block, total_loss
from tests.sched.runtime.saved_bytes import CountingStages, peaks

HIDDEN, WORDS, TOKENS = 8, 11, 16
RANKS, MICROBATCHES = 4, 8
# By schedule: the most microbatches (of a chunk) that a rank holds.
HELD = {"1f1b": 4, "zb-h1": 4, "v-half": 6, "1f1b-alg1": 6, "1f1b-alg2": 5}


def model(program: Program) -> list[nn.Module]:
    torch.manual_seed(0)
    stages = [nn.Sequential(Block(), Block()) for _ in range(program.stages)]
    stages[0].insert(0, nn.Embedding(WORDS, HIDDEN))
    if not program.barriers:
        stages[-1].append(nn.Linear(HIDDEN, WORDS))
    return list(stages)


def run(program: Program) -> list[CountingStages]:
    """Run a step of equal microbatches on all ranks; return the stages, which have counted."""
    stages, head = model(program), nn.Linear(HIDDEN, WORDS)
    loss = None if program.barriers else total_loss
    options = StageOptions(inputs=("ids",), labels=("labels",), loss=loss)
    words = torch.arange(TOKENS) % WORDS
    microbatch = MicrobatchData(
        {"ids": words, "labels": words.roll(1)}, 0.1, TensorSpec((TOKENS, HIDDEN))
    )
    wanted = (False, *(True,) * program.stages)
    data = StepData((microbatch,) * program.microbatches, wanted)
    loop, counted, walks = Loopback(RANKS), [], []
    algorithm: Literal["alg1", "alg2"] = "alg1" if program.name.endswith("alg1") else "alg2"
    for rank in range(RANKS):
        own = {stage: stages[stage] for stage in program.stages_of(rank)}
        counting = CountingStages(Stages(program, own, options))
        parts: dict[str, ModelPart] = dict.fromkeys(counting.kinds, counting)
        counting.begin(data)
        if program.barriers:
            parallel = VocabParallel(head, algorithm=algorithm)
            layer = VocabularyPart(parallel, parallel.shard(rank, RANKS), reports_loss=not rank)
            layer.begin(data)
            parts |= dict.fromkeys(layer.kinds, layer)
        walker = Walker(parts, loop.links(rank), collectives(program), reduce=lambda _: None)
        walks.append(walk(compile_program(program, rank, wanted), data, walker))
        counted.append(counting)
    loop.run(walks)
    return counted


def profile(program: Program) -> dict[str, list[int]]:
    """Bytes of every stage's buffers, measured on the first microbatch of each by itself."""
    single = replace(
        program,
        microbatches=1,
        ranks=tuple(tuple(item for item in row if item.microbatch == 0) for row in program.ranks),
    )
    sizes: dict[str, list[int]] = {"activation": [], "weight": []}
    parts = run(single)
    for stage, rank in enumerate(program.placement):
        after, row = parts[rank].after, single.ranks[rank]
        for name, kind in (("activation", "F"), ("weight", "I")):
            at = next((i for i, p in enumerate(row) if (p.stage, p.kind) == (stage, kind)), None)
            if at is None:
                sizes[name].append(0)
                continue
            # Another chunk's microbatch may be held beside it.
            before = [p for p in row[:at] if p.kind in "FBIW"]
            held = after[before[-1]] if before else 0
            freed = sizes["activation"][stage] if name == "weight" else 0
            sizes[name].append(after[row[at]] - held + freed)
    return sizes


@pytest.mark.parametrize("name", HELD)
def test_the_most_that_is_saved_is_what_the_simulator_says(name: str) -> None:
    program = schedule(name, ranks=RANKS, microbatches=MICROBATCHES)
    costs = replace(unit_costs(10, 20, 3), buffer_bytes=profile(program))
    expected = simulate(program, costs).peak_bytes
    parts = run(program)
    found = peaks(parts)
    assert found == pytest.approx(expected, rel=0.02)
    assert max(simulate(program, unit_costs(10, 20, 3)).peak_bytes) == HELD[name]
    assert [part.ledger.held for part in parts] == [0] * RANKS  # nothing is left after a step
