"""Low precision: statistics in single, errors like those of one process, autocast."""

import pytest
import torch

from counterpoise.sched.runtime.vocabulary.shard import VocabParallel
from tests.sched.runtime.vocabulary.cases import OPTIONS, Data, Shape, make_data
from tests.sched.runtime.vocabulary.one_process import begun, l2_error, reference, same
from tests.sched.runtime.vocabulary.shards import run_shards

SHAPE = Shape(size=1000, hidden=64, tokens=(96, 32, 64))


@pytest.mark.parametrize("algorithm", ["alg1", "alg2", "naive"])
@pytest.mark.parametrize("keep", ["logits", "nothing"])
@pytest.mark.parametrize("options", ["plain", "all"])
@pytest.mark.parametrize("predicted", [False, True])
def test_bf16_errors_are_at_most_half_more_than_those_of_one_process(
    algorithm: str, keep: str, options: str, predicted: bool
) -> None:
    shape = Shape(SHAPE.size, SHAPE.hidden, SHAPE.tokens, options=OPTIONS[options])
    data = make_data(shape, 0, torch.bfloat16)
    if predicted:
        _predict(data)
    parallel = VocabParallel(
        data.head,
        algorithm=algorithm,  # type: ignore[arg-type]
        keep=keep,  # type: ignore[arg-type]
        loss=shape.options,
    )
    found = run_shards(parallel, data.hidden, data.batches, ranks=8).found
    arguments = (data.head, data.hidden, data.batches, shape.options)
    exact, one = reference(*arguments, torch.float32), reference(*arguments, torch.bfloat16)
    pairs = {
        "weight": (found.weight, one.weight, exact.weight),
        "bias": (found.bias, one.bias, exact.bias),
        **{f"X{m}": (found.inputs[m].bfloat16(), one.inputs[m], exact.inputs[m]) for m in range(3)},
    }
    ratios = {
        name: l2_error(ours, wanted) / l2_error(theirs, wanted)
        for name, (ours, theirs, wanted) in pairs.items()
    }
    assert max(ratios.values()) <= 1.5, ratios


def _predict(data: Data) -> None:
    """Make most labels the likeliest words, where gradients are differences of like numbers."""
    for hidden, batch in zip(data.hidden, data.batches, strict=True):
        likeliest = data.head(hidden).argmax(1)
        batch.fields["labels"][::2] = likeliest[::2]


def test_torchs_autocast_does_not_lower_the_precision_of_statistics() -> None:
    data = make_data(SHAPE, 2)
    parallel = VocabParallel(data.head)
    plain = run_shards(parallel, data.hidden, data.batches, ranks=2).found
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run_shards(parallel, data.hidden, data.batches, ranks=2).found
    assert same(found.weight, plain.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_low_precision_are_in_single(dtype: torch.dtype) -> None:
    data = make_data(SHAPE, 1, dtype)
    parallel = VocabParallel(data.head)
    step = begun(parallel.shard(0, 2), parallel, data.batches)
    statistics = step.run("S", 0, data.hidden[0])
    assert statistics is not None
    assert statistics.dtype == torch.float32
    assert statistics.shape == (3, SHAPE.tokens[0])


def test_autocast_computes_in_its_precision_and_adds_to_gradients_in_the_weights() -> None:
    data = make_data(SHAPE, 2)
    parallel = VocabParallel(data.head)
    found = run_shards(parallel, data.hidden, data.batches, ranks=2, autocast=torch.bfloat16)
    assert found.found.inputs[0].dtype == torch.float32
    assert found.found.weight.dtype == torch.float32
    wanted = reference(data.head, data.hidden, data.batches, SHAPE.options)
    assert 1e-5 < l2_error(found.found.weight, wanted.weight) < 1e-2


def test_gradients_of_hidden_states_may_be_summed_in_the_models_precision() -> None:
    data = make_data(SHAPE, 2, torch.bfloat16)
    for gradient_sum, dtype in (("single", torch.float32), ("model", torch.bfloat16)):
        parallel = VocabParallel(data.head, gradient_sum=gradient_sum)  # type: ignore[arg-type]
        found = run_shards(parallel, data.hidden, data.batches, ranks=2).found
        assert found.inputs[0].dtype == dtype


@pytest.mark.parametrize("keep", ["logits", "nothing"])
def test_repeated_runs_give_the_same_bits(keep: str) -> None:
    data = make_data(SHAPE, 3, torch.bfloat16)
    parallel = VocabParallel(data.head, keep=keep)  # type: ignore[arg-type]
    one, two = (run_shards(parallel, data.hidden, data.batches, ranks=2).found for _ in range(2))
    assert same(one.weight, two.weight)
    assert all(same(a, b) for a, b in zip(one.inputs, two.inputs, strict=True))
