"""Shards compute what one process computes: losses, gradients of X, weight and bias."""

import pytest
import torch

from counterpoise.sched.runtime.vocabulary.shard import VocabParallel
from tests.sched.runtime.vocabulary.cases import OPTIONS, Data, Shape, a_shape, make_data
from tests.sched.runtime.vocabulary.one_process import Wanted, error, labelled, reference, same
from tests.sched.runtime.vocabulary.shards import run_shards

ALGORITHMS = ("alg1", "alg2", "naive")
KEEP = ("logits", "nothing")


def assert_equal(found: Wanted, wanted: Wanted, tolerance: float) -> None:
    for m in range(len(wanted.losses)):
        assert error(found.losses[m], wanted.losses[m]) <= tolerance, m
        assert error(found.inputs[m], wanted.inputs[m]) <= tolerance, m
    assert error(found.weight, wanted.weight) <= tolerance
    if wanted.bias is not None:
        assert error(found.bias, wanted.bias) <= tolerance


def compare(
    data: Data, shape: Shape, algorithm: str, keep: str, ranks: int, seed: int, tolerance: float
) -> None:
    parallel = VocabParallel(
        data.head,
        algorithm=algorithm,  # type: ignore[arg-type]
        keep=keep,  # type: ignore[arg-type]
        loss=shape.options,
    )
    outcome = run_shards(parallel, data.hidden, data.batches, ranks=ranks, seed=seed)
    wanted = reference(data.head, data.hidden, data.batches, shape.options)
    assert_equal(outcome.found, wanted, tolerance)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("keep", KEEP)
def test_each_option_is_within_1e5_of_double_precision(
    options: str, algorithm: str, keep: str
) -> None:
    shape = Shape(options=OPTIONS[options])
    compare(make_data(shape, 1), shape, algorithm, keep, ranks=4, seed=1, tolerance=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 12))]
)
def test_any_shape_on_any_number_of_ranks_in_any_order(
    ranks: int, algorithm: str, seed: int
) -> None:
    number = 100 * seed + 10 * ranks + ALGORITHMS.index(algorithm)
    shape = a_shape(number)
    keep = KEEP[number % 2]
    data = make_data(shape, number, torch.float64)
    compare(data, shape, algorithm, keep, ranks, seed, tolerance=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_pieces_of_one_token_or_some_columns_change_nothing(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterpoise.sched.runtime.vocabulary import output_passes as logits

    monkeypatch.setattr(logits.token_pieces, "__defaults__", (1,))
    monkeypatch.setattr(logits.column_pieces, "__defaults__", (1,))
    shape = Shape(size=1500, options=OPTIONS["all"])
    data = make_data(shape, 3, torch.float64)
    for keep in KEEP:
        compare(data, shape, algorithm, keep, ranks=2, seed=3, tolerance=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_logits_do_not_overflow(algorithm: str) -> None:
    shape = Shape(spread=1e4)
    data = make_data(shape, 5, torch.float64)
    compare(data, shape, algorithm, "logits", ranks=4, seed=5, tolerance=1e-9)


def test_a_shard_whose_logits_are_all_minus_infinity_counts_nothing() -> None:
    shape = Shape(size=16, ignored="none")
    data = make_data(shape, 6, torch.float64)
    with torch.no_grad():
        data.head.bias[4:8] = float("-inf")  # the whole second shard of four
    for batch in data.batches:
        batch.fields["labels"].remainder_(4)
    parallel = VocabParallel(data.head)
    found = run_shards(parallel, data.hidden, data.batches, ranks=4).found
    wanted = reference(data.head, data.hidden, data.batches, shape.options)
    for m, loss in enumerate(wanted.losses):
        assert error(found.losses[m], loss) <= 1e-9


def test_hidden_states_and_labels_may_have_a_batch_dimension() -> None:
    shape = Shape(tokens=(6,))
    data = make_data(shape, 7)
    flat = run_shards(VocabParallel(data.head), data.hidden, data.batches, ranks=2)
    (batch,) = data.batches
    folded = [labelled(batch.fields["labels"].reshape(2, 3), batch.weight)]
    hidden = [data.hidden[0].reshape(2, 3, -1)]
    found = run_shards(VocabParallel(data.head), hidden, folded, ranks=2)
    assert same(found.found.inputs[0].flatten(0, 1), flat.found.inputs[0])
    assert same(found.found.weight, flat.found.weight)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_sent_back_if_nothing_before_the_head_is_trained(algorithm: str) -> None:
    shape = Shape()
    data = make_data(shape, 9)
    wanted = reference(data.head, data.hidden, data.batches, shape.options)
    parallel = VocabParallel(data.head, algorithm=algorithm)  # type: ignore[arg-type]
    found = run_shards(parallel, data.hidden, data.batches, ranks=2, input_gradient=False).found
    assert found.inputs == [None] * len(data.batches)
    assert error(found.weight, wanted.weight) <= 1e-5


def test_the_loss_is_the_same_bits_on_every_rank() -> None:
    shape = Shape(options=OPTIONS["all"])
    data = make_data(shape, 10)
    parallel = VocabParallel(data.head, loss=shape.options)
    steps = run_shards(parallel, data.hidden, data.batches, ranks=4).steps
    for m in range(len(data.batches)):
        assert len({step.losses[m].item() for step in steps}) == 1


def test_padding_rows_stay_zero() -> None:
    shape = Shape(size=5, options=OPTIONS["all"])
    data = make_data(shape, 11)
    outcome = run_shards(
        VocabParallel(data.head, loss=shape.options), data.hidden, data.batches, ranks=4
    )
    for shard in outcome.shards:
        real = shard.lm_head.sharding.real
        for parameter in shard.parameters():
            assert parameter.grad is not None
            assert not parameter.grad[real:].any()
            assert not parameter[real:].any()
