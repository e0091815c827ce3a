"""The part that an executor runs: fields in, shapes of hidden states out, the loss on one rank."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched import schedule
from counterpoise.sched.ir.program import parse_pass
from counterpoise.sched.runtime.parts import MicrobatchData, ModelPart, StepData, TensorSpec
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart, refuse_other_passes
from tests.sched.runtime.vocabulary.one_process import error

SIZE, HIDDEN, RANKS = 13, 8, 2


def parts(parallel: VocabParallel) -> list[VocabularyPart]:
    return [
        VocabularyPart(parallel, parallel.shard(rank, RANKS), reports_loss=rank == RANKS - 1)
        for rank in range(RANKS)
    ]


def step_data(*shapes: tuple[int, int], dtype: torch.dtype = torch.float32) -> StepData:
    microbatches = []
    for number, shape in enumerate(shapes):
        words = torch.arange(shape[0] * shape[1]).reshape(shape) % SIZE
        fields = {"input_ids": words, "labels": words.roll(1)}
        microbatches.append(
            MicrobatchData(fields, 0.5 + number, TensorSpec((*shape, HIDDEN), dtype))
        )
    return StepData(tuple(microbatches), (True, True, True))


def run(every: Sequence[ModelPart], text: str, given: dict[str, Tensor]) -> list[Any]:
    """Run a pass such as S0 on all ranks and return what they made."""
    found = []
    for rank, part in enumerate(every):
        what = parse_pass(f"{rank}{text}")
        found.append(part.run_pass(what, given).get(what.kind))
    return found


def test_a_step_of_algorithm_2_with_embedding() -> None:
    torch.manual_seed(0)
    head, embedding = nn.Linear(HIDDEN, SIZE), nn.Embedding(SIZE, HIDDEN)
    every = parts(VocabParallel(head, embedding))
    assert all(part.kinds == {"S", "C", "T", "IF", "IB"} for part in every)
    data = step_data((2, 3), (1, 5))
    total = torch.zeros(())
    for part in every:
        part.begin_step(data)
    for m, item in enumerate(data.microbatches):
        x = torch.stack(run(every, f"IF{m}", {})).sum(0)
        statistics = torch.stack(run(every, f"S{m}", {"CX": x}))
        gradient = torch.stack(run(every, f"C{m}", {"CS": statistics})).sum(0)
        assert run(every, f"T{m}", {"CS": statistics}) == [None, None]
        assert gradient.shape == x.shape == item.hidden.shape
        run(every, f"IB{m}", {"CJ": gradient})
        logits = head(embedding(item.fields["input_ids"])).flatten(0, 1)
        labels = item.fields["labels"].flatten()
        total = total + nn.functional.cross_entropy(logits, labels, reduction="sum") * item.weight
    nothing, loss = [part.finish_step() for part in every]
    assert nothing is None
    assert error(loss, total.detach()) <= 1e-6
    total.backward()
    shards = [part.shard for part in every]
    for name, wanted in (("lm_head", head.weight.grad), ("embedding", embedding.weight.grad)):
        grads = torch.cat([getattr(shard, name).weight.grad for shard in shards])[:SIZE]
        assert error(grads, wanted) <= 1e-5


def test_what_the_first_stage_is_given_has_its_precision() -> None:
    every = parts(VocabParallel(nn.Linear(HIDDEN, SIZE), nn.Embedding(SIZE, HIDDEN)))
    for part in every:
        part.begin_step(step_data((2, 3), dtype=torch.bfloat16))
    assert [x.dtype for x in run(every, "IF0", {})] == [torch.bfloat16] * RANKS


def test_a_head_of_its_own_needs_no_words() -> None:
    (part, _) = parts(VocabParallel(nn.Linear(HIDDEN, SIZE), algorithm="naive"))
    assert part.kinds == {"L", "E", "G"}
    assert part.fields == {"labels": "labels"}


def test_an_algorithm_other_than_the_schedules_is_refused() -> None:
    for name in ("alg1", "alg2", "naive"):
        program = schedule(f"v-half-{name}", ranks=2, microbatches=4)
        for algorithm in ("alg1", "alg2", "naive"):
            parallel = VocabParallel(nn.Linear(4, 4), algorithm=algorithm)
            if algorithm == name:
                refuse_other_passes(program, parallel)
            else:
                with pytest.raises(ValueError, match=f"give VocabParallel.*algorithm='{name}'"):
                    refuse_other_passes(program, parallel)


@pytest.mark.parametrize("inputs", [True, False])
def test_an_embedding_without_its_passes_is_refused_and_passes_without_it(inputs: bool) -> None:
    program = schedule("1f1b-alg2", ranks=2, microbatches=4, inputs=inputs)
    parallel = VocabParallel(nn.Linear(4, 8), None if inputs else nn.Embedding(8, 4))
    with pytest.raises(ValueError, match="input passes and VocabParallel's embedding go together"):
        refuse_other_passes(program, parallel)
