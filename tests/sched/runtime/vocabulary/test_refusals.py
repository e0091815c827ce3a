"""What cannot be divided or computed is refused with what to do instead."""

import pytest
import torch
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime.vocabulary.loss import LossOptions
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel
from counterpoise.sched.runtime.vocabulary.step import refuse_other_passes
from tests.sched.runtime.vocabulary.one_process import begun, labelled

HEAD = nn.Linear(4, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.1}, "label_smoothing=1.1; give a number from 0 to 1"),
        ({"z_loss": -1.0}, "z_loss=-1.0; give a weight of 0 or more"),
        ({"softcap": 0.0}, "softcap=0.0; give a positive number, or None for none"),
    ],
)
def test_options_outside_their_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"algorithm": "alg3"}, ValueError, "algorithm='alg3'; give 'alg2' or 'alg1' or 'naive'"),
        ({"keep": "all"}, ValueError, "keep='all'; give 'logits' or 'nothing'"),
        ({"embedding": nn.Linear(4, 10)}, TypeError, "embedding is a Linear; give an nn.Embedding"),
        ({"embedding": nn.Embedding(10, 5)}, ValueError, "hidden states of 5, .* takes 4"),
        ({"embedding": nn.Embedding(10, 4, max_norm=1.0)}, ValueError, "max_norm, which needs"),
        ({"embedding": nn.Embedding(10, 4, sparse=True)}, ValueError, "sparse, which needs"),
    ],
)
def test_layers_and_forms_that_do_not_fit(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        VocabParallel(HEAD, **options)  # type: ignore[arg-type]


def test_a_head_that_is_no_linear_layer() -> None:
    with pytest.raises(TypeError, match=r"lm_head is a Embedding; give an nn\.Linear"):
        VocabParallel(nn.Embedding(10, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("label", [10, -1])
def test_a_label_outside_the_vocabulary(label: int) -> None:
    parallel = VocabParallel(HEAD)
    step = begun(parallel.shard(0, 2), parallel, [labelled(torch.tensor([3, label]), 1.0)])
    with pytest.raises(ValueError, match=f"label {label} is not in the vocabulary of 10 words"):
        step.run("S", 0, torch.zeros(2, 4))


def test_a_head_of_its_own_needs_no_words() -> None:
    parallel = VocabParallel(HEAD, algorithm="naive")
    part = begun(parallel.shard(0, 2), parallel, [])
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
