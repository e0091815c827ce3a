"""transformers.Trainer on our loader: the same steps and weights as a loop of one's own."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frameworks.pool import Pool

CASES = "trainer_cases"
CLOSE = 1e-6


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], most: float = CLOSE) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert np.abs(one - other).max() <= most * np.abs(other).max()


def by_step(seen: Any) -> dict[int, list[int]]:
    """Return the sorted samples of each optimizer step."""
    found: dict[int, list[int]] = {}
    for step, numbers in seen:
        found.setdefault(step, []).extend(numbers)
    return {step: sorted(numbers) for step, numbers in found.items()}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["window", "epoch"])
def test_epochs_of_unknown_length_follow_each_other(one: Pool, tmp_path: Path, mode: str) -> None:
    check_unknown_length(one, tmp_path, mode, at=7)  # inside the second epoch


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.long)])
def test_streams_are_trained_on_and_resumed(
    one: Pool, two: Pool, tmp_path: Path, ranks: int
) -> None:
    check_unknown_length({1: one, 2: two}[ranks], tmp_path, "stream", at=16 // ranks)


def check_unknown_length(pool: Pool, folder: Path, mode: str, at: int) -> None:
    """Hold on each rank that epochs follow each other, also after a checkpoint at step `at`."""
    found = pool.run(f"{CASES}:of_unknown_length", folder=str(folder), mode=mode, at=at)
    for steps, seen, epochs, again, error in found:
        check_epochs(steps, seen, epochs, again, error, at)


def check_epochs(steps: Any, seen: Any, epochs: Any, again: Any, error: str, at: int) -> None:
    """Hold what a process has seen."""
    assert [epoch for epoch, _ in steps].index(1) < at < len(steps)
    expected = [(n, each) for n, (_, batches) in enumerate(steps) for each in batches]
    assert seen == expected
    assert again == [pair for pair in expected if pair[0] >= at]
    assert epochs == (1.0, 1.0)
    assert "TrainingArguments(max_steps=...)" in error


def test_resuming_by_skipping_is_an_error(one: Pool, tmp_path: Path) -> None:
    (error,) = one.run(f"{CASES}:not_attached", folder=str(tmp_path))
    assert "cp.adapters.attach_trainer(trainer, loader)" in error


def test_what_arguments_say_of_loading_is_the_loaders_or_refused(one: Pool, tmp_path: Path) -> None:
    ((errors, taken),) = one.run(f"{CASES}:loading_said_twice", folder=str(tmp_path))
    expected = (
        "per_device_train_batch_size is 4 in TrainingArguments, and the loader has 1",
        "per_device_train_batch_size is 8 in TrainingArguments, and the loader has 1",
        "per_device_train_batch_size is 2 in TrainingArguments, and the loader has 4",
        "dataloader_num_workers is 2 in TrainingArguments, and the loader has 0",
        "dataloader_drop_last is True in TrainingArguments, and the loader has False",
        "auto_find_batch_size is True in TrainingArguments, and the loader has False",
        "data_seed is 3 in TrainingArguments, and the loader has 0",
        "dataloader_in_order is False in TrainingArguments, and the loader has True",
        "dataloader_multiprocessing_context is spawn in TrainingArguments, and the loader has None",
        "give DataLoader(shuffle=False), or leave the strategy",
        "give DataLoader(shuffle=False), or leave the strategy",
        "Loading.get_train_dataloader makes batches of its own",
        "Loading.get_train_dataloader makes batches of its own",
    )
    for error, words in zip(errors, expected, strict=True):
        assert words in error
    assert taken == 4


def test_what_would_train_wrong_is_refused(one: Pool, tmp_path: Path) -> None:
    (errors,) = one.run(f"{CASES}:attach_errors", folder=str(tmp_path))
    expected = (
        "gradient_accumulation_steps=4",
        "Trainer(compute_loss_func=...)",
        "without balance",
        "takes a counterpoise.DataLoader, got a builtins.list: make it by counterpoise.DataLoader(",
    )
    for error, part in zip(errors, expected, strict=True):
        assert part in error


def test_every_set_is_evaluated_on_itself(one: Pool, tmp_path: Path) -> None:
    (found,) = one.run(f"{CASES}:evaluations", folder=str(tmp_path))
    losses = found["alone"]
    assert losses["eval_a_loss"] != pytest.approx(losses["eval_b_loss"], rel=1e-4)
    assert found["by name"] == pytest.approx(losses)
    assert found["own"]["eval_loss"] == pytest.approx(losses["eval_b_loss"])
    assert found["other"]["eval_loss"] == pytest.approx(losses["eval_a_loss"])
    assert found["predicted"]["test_loss"] == pytest.approx(losses["eval_a_loss"])
    assert "eval_dataset is a dict of a, b, eval_loader DataLoader" in found["error"]


@pytest.mark.parametrize(
    ("counts", "divides", "error", "calls"),
    [
        (None, True, "", 4),  # two of them measure
        (None, False, "does not divide by num_items_in_batch", 2),
        ("equal", False, "", 2),
    ],
)
def test_a_loss_is_measured_before_counts_differ(
    one: Pool, tmp_path: Path, counts: str | None, divides: bool, error: str, calls: int
) -> None:
    named: dict[str, Any] = {"folder": str(tmp_path), "counts": counts, "divides": divides}
    ((said, count, are_equal),) = one.run(f"{CASES}:own_loss", **named)
    assert error in said
    assert bool(error) == bool(said)
    assert count == calls
    assert are_equal or counts == "equal"


@pytest.mark.parametrize("count", [91, pytest.param(96, marks=pytest.mark.long)])
def test_trainer_evaluates_every_sample_once(two: Pool, tmp_path: Path, count: int) -> None:
    for found in two.run(f"{CASES}:evaluated", folder=str(tmp_path), count=count):
        assert Counter(found) == Counter(range(count))


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "accumulate"), [(2, 2), (1, 1)])
def test_trls_sft_trainer_trains_on_packed_batches_as_on_separate_samples(
    one: Pool, two: Pool, tmp_path: Path, ranks: int, accumulate: int
) -> None:
    named: dict[str, Any] = {"accumulate": accumulate, "steps": 4}
    found = {1: one, 2: two}[ranks].run("sft_cases:trained", folder=str(tmp_path), **named)
    ((seen, weights),) = one.run("sft_cases:reference", ranks=ranks, **named)
    assert by_step([pair for rank, _ in found for pair in rank]) == by_step(seen)
    for _, trained in found:
        assert_close(trained, weights)


@pytest.mark.parametrize("is_plain", [False, True])
def test_trainer_logs_what_a_loader_counts(one: Pool, tmp_path: Path, is_plain: bool) -> None:
    named = {"folder": str(tmp_path), "is_plain": is_plain}
    ((names, stats),) = one.run(f"{CASES}:stats_in_logs", **named)
    assert {"loss", *stats} <= {*names}
    assert stats["loader/samples"] > 0


def test_a_report_is_written_after_each_epoch_of_trainer(one: Pool, tmp_path: Path) -> None:
    ((said, last),) = one.run(f"{CASES}:said_after_epochs", folder=str(tmp_path))
    lines = [line for line in said.splitlines() if line.startswith(("data", "ranks", "samples"))]
    assert len(lines) == 6
    assert lines[3:] == last.splitlines()
