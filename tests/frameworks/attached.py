"""attach_trainer without a loader: the loader that Trainer would have made, balanced."""

from itertools import chain
from pathlib import Path

import pytest

from tests.frameworks.pool import Pool
from tests.frameworks.trainer import by_step

CASES = "attached_cases"


@pytest.mark.parametrize("kind", ["rows", "objects", "sequential", "subclass"])
def test_it_has_the_fields_of_trainers_loader(one: Pool, tmp_path: Path, kind: str) -> None:
    ((ours, theirs),) = one.run(f"{CASES}:fields", folder=str(tmp_path), kind=kind)
    assert ours == theirs
    assert ours["num_workers"] == 2


@pytest.mark.parametrize("strategy", ["random", "sequential"])
@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.long)])
def test_steps_have_the_samples_of_trainers_own(
    one: Pool, two: Pool, tmp_path: Path, ranks: int, strategy: str
) -> None:
    named = {"folder": str(tmp_path), "strategy": strategy}
    answers = {1: one, 2: two}[ranks].run(f"{CASES}:steps_of_both", **named)
    ours, theirs = (
        by_step([pair for answer in answers for pair in answer[place]]) for place in (0, 1)
    )
    assert ours == theirs
    assert len(ours) == 24 // ranks
    half = len(ours) // 2
    epochs = [[ours[step] for step in range(half * n, half * (n + 1))] for n in (0, 1)]
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == list(range(96))
    assert (epochs[0] == epochs[1]) == (strategy == "sequential")


def test_losses_and_gradients_are_those_of_trainers_own(two: Pool, tmp_path: Path) -> None:
    for ours, theirs, padded in two.run(f"{CASES}:losses_of_both", folder=str(tmp_path)):
        assert ours == [pytest.approx(step, rel=1e-5) for step in theirs]
        assert len(ours) == 6
        assert padded[0] < padded[1]


def test_it_resumes_inside_an_epoch(one: Pool, tmp_path: Path) -> None:
    ((whole, resumed),) = one.run(f"{CASES}:resumed", folder=str(tmp_path))
    assert resumed
    assert resumed == [pair for pair in whole if pair[0] >= 5]


def test_data_and_arguments_may_change_after_the_call(one: Pool, tmp_path: Path) -> None:
    ((steps, numbers, count),) = one.run(f"{CASES}:changed_later", folder=str(tmp_path))
    assert steps == 8  # 48 samples, 3 x 2 a step
    assert numbers == list(range(48))
    assert count == 1  # of a second train(), too, there is one ledger


def test_what_no_plan_follows_is_refused(one: Pool, tmp_path: Path) -> None:
    (errors,) = one.run(f"{CASES}:refused", folder=str(tmp_path))
    expected = {
        "both": "balance and cost are for the loader that attach_trainer makes",
        "sampler": "Odd draws its samples by a WeightedRandomSampler",
        "loader": "Odd.get_train_dataloader() returns a builtins.list",
        "ours": "get_train_dataloader() returns a counterpoise.DataLoader already",
        "packing": "sample_packing=True joins samples",
        "strategy": "train_sampling_strategy='group_by_length' makes batches by length",
        "gpus": "2 GPUs in one process are torch's DataParallel",
        "stream": "train_dataset is a stream (TextStream), which each of 2 ranks would read",
        "parallel": "processes share samples by cp=2",
        "column": "column 'length' of train_dataset says 7 for sample 5, and it has",
    }
    assert {name: text for name, text in expected.items() if text not in errors[name]} == {}
    assert errors["called"] == ""  # packing is looked at before anything is called


def test_a_stream_is_read_as_it_is(one: Pool, tmp_path: Path) -> None:
    ((numbers, text),) = one.run(f"{CASES}:streamed", folder=str(tmp_path))
    assert numbers == list(range(96))
    assert "train_dataset is a stream, and not balanced" in text


def test_a_trainer_that_has_trained_is_told_what_it_can_do(one: Pool, tmp_path: Path) -> None:
    ((text, refused),) = one.run(f"{CASES}:attached_too_late", folder=str(tmp_path))
    assert "2 steps are trained: attach_trainer() belongs before trainer.train()" in text
    assert "saved without attach_trainer()" in refused
    assert "end this run without attach_trainer()" in refused


@pytest.mark.parametrize("column", ["length", "lengths"])
def test_costs_are_those_of_a_column_of_lengths(one: Pool, tmp_path: Path, column: str) -> None:
    ((ours, lengths),) = one.run(f"{CASES}:column", folder=str(tmp_path), column=column)
    assert ours == lengths


def test_costs_are_found_in_batches_where_the_collator_makes_tokens(
    one: Pool, tmp_path: Path
) -> None:
    ((costs, lengths, text, padded),) = one.run(f"{CASES}:collated", folder=str(tmp_path))
    assert costs == lengths
    assert "tokens padded" in text
    assert "in this epoch each is loaded twice" in text
    assert padded[0] < 0.9 * padded[1]


@pytest.mark.parametrize(
    ("kind", "counts", "words"),
    [
        ("llama", "free", ""),
        ("switched off", "equal", "trainer.model_accepts_loss_kwargs = True before attach_"),
        ("own mean", "equal", "compute_loss of Own does not divide by num_items_in_batch"),
    ],
)
def test_whether_the_loss_is_divided_is_measured(
    one: Pool, tmp_path: Path, kind: str, counts: str, words: str
) -> None:
    ((ours, text, sizes),) = one.run(f"{CASES}:loss_found", folder=str(tmp_path), kind=kind)
    assert ours == counts
    assert words in text
    assert bool(words) == ("tokens of short samples weigh more" in text)
    assert (sizes == {4}) == (counts == "equal")


def test_ranks_are_those_of_the_mesh(two: Pool, tmp_path: Path) -> None:
    first, second = two.run(f"{CASES}:on_mesh", folder=str(tmp_path))
    assert first == second
    assert len(first[0]) == 24
    assert "give TrainingArguments(dataloader_num_workers=1)" in first[1]


def test_ms_swifts_sampler_is_read(one: Pool, tmp_path: Path) -> None:
    ((ours, theirs, fields),) = one.run(f"{CASES}:swift", folder=str(tmp_path))
    assert ours == theirs
    assert fields == (4, True)


def test_trls_sft_trainer_needs_one_line(one: Pool, tmp_path: Path) -> None:
    ((ours, theirs),) = one.run(f"{CASES}:sft", folder=str(tmp_path))
    assert ours == [pytest.approx(loss, rel=1e-5) for loss in theirs]
    assert len(ours) == 6


def test_trls_dpo_trainer_has_equal_counts_of_pairs(one: Pool, tmp_path: Path) -> None:
    ((shapes, counts, costs, lengths, losses, text),) = one.run(
        f"{CASES}:dpo", folder=str(tmp_path)
    )
    assert {rows for rows, _ in shapes["ours"]} == {8}
    assert counts == "equal"
    assert costs == lengths
    assert sum(r * n for r, n in shapes["ours"]) < sum(r * n for r, n in shapes["theirs"])
    assert losses["ours"] == [pytest.approx(loss, rel=1e-4) for loss in losses["theirs"]]
    assert "weigh more" not in text
