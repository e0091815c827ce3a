"""Labels that collate_fn masks, cuts or moves: counted in the batches, or a contradiction."""

from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader, LoaderError
from tests.loader.test_label_tokens import COUNT, Texts, cost, made_of


def masked(samples: list[Any]) -> dict[str, Any]:
    """Collate so that only the end of each sample is learned."""
    batch = padded(samples)
    batch["labels"][:, :5] = -100
    return batch


def cut(samples: list[Any]) -> dict[str, Any]:
    """Collate no more than 5 tokens of each sample."""
    return {name: value[:, :5] for name, value in padded(samples).items()}


def without_the_last(samples: list[Any]) -> dict[str, Any]:
    """Collate without one label of each sample: as many are left as if none were shifted."""
    batch = padded(samples)
    for row, sample in enumerate(samples):
        batch["labels"][row, len(sample["labels"]) - 1] = -100
    return batch


def padded(samples: list[Any]) -> dict[str, Any]:
    longest = max(len(sample["labels"]) for sample in samples)
    labels = torch.full((len(samples), longest), -100)
    for row, sample in enumerate(samples):
        labels[row, : len(sample["labels"])] = torch.as_tensor(sample["labels"])
    return {"input_ids": labels.clamp(0), "labels": labels}


def before(samples: list[Any]) -> dict[str, Any]:
    """Collate labels at the token before theirs, for a loss that shifts nothing."""
    batch = padded(samples)
    labels = torch.full_like(batch["labels"], -100)
    labels[:, :-1] = batch["labels"][:, 1:]
    return {**batch, "labels": labels}


LABELS = {"tokens": [9] * COUNT, "label_tokens": [8] * COUNT}


class Alike(Texts):
    """Samples of 9 tokens, of which 8 bear loss."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": np.arange(9) + 1, "labels": np.arange(9) + 1}


def changed(collate_fn: Any, cost: Any, balance: Any = None, **given: Any) -> DataLoader[Any, Any]:
    return DataLoader(
        Alike(), collate_fn=collate_fn, cost=cost, shuffle=True,
        balance=balance or Balance(samples_per_step=8, accumulate=2), **given,
    )  # fmt: skip


@pytest.mark.parametrize("collate_fn", [masked, cut, without_the_last])
def test_where_the_first_batch_shows_it_the_batches_are_counted(collate_fn: Any) -> None:
    given = changed(collate_fn, cost)
    assert given.state_dict()["label_tokens"] == "batch"
    found = [(info.label_tokens, made_of(batch)) for batch, info in given.with_info()]
    assert found
    assert all(told == there for told, there in found)
    given.close()


@pytest.mark.parametrize(("collate_fn", "left"), [(masked, 16), (cut, 16), (without_the_last, 28)])
def test_a_table_that_the_batches_contradict_ends_the_run_with_both_numbers(
    collate_fn: Any, left: int
) -> None:
    given = changed(collate_fn, LABELS)
    message = rf'have 32 label tokens by .* made of them {left} .*label_tokens="batch"'
    with pytest.raises(LoaderError, match=message):
        next(iter(given))
    given.close()
    one = changed(
        collate_fn, LABELS, Balance(samples_per_step=8, accumulate=2, label_tokens="batch")
    )
    assert {info.label_tokens for _, info in one.with_info()} == {left}
    one.close()


@pytest.mark.usefixtures("through_balancer")
def test_so_it_does_with_a_balancer() -> None:
    given = changed(masked, LABELS, num_workers=1)
    with pytest.raises(LoaderError, match=r"have 32 label tokens by .* made of them 16"):
        next(iter(given))
    given.close()


def test_so_it_does_with_costs_that_are_found() -> None:
    given = DataLoader(Alike(), collate_fn=masked, balance="auto", batch_size=4, shuffle=True)
    with pytest.raises(LoaderError, match=r"have 32 label tokens by .* made of them 16"):
        next(iter(given))
    given.close()


@pytest.mark.parametrize("collate_fn", [padded, before])
def test_a_collate_fn_that_only_moves_labels_changes_nothing(collate_fn: Any) -> None:
    for costs in (cost, LABELS):
        given = changed(collate_fn, costs)
        assert given.state_dict()["label_tokens"] == "label_tokens"
        assert {info.step_label_tokens for _, info in given.with_info()} == {64}
        given.close()


def test_rows_that_are_filled_with_another_label_are_no_contradiction() -> None:
    class Ragged(Texts):
        def __getitem__(self, index: int) -> dict[str, Any]:
            ids = np.arange(2 + index % 7) + 10 * index
            return {"input_ids": ids, "labels": ids}

    def filled(samples: list[Any]) -> dict[str, Any]:
        batch = padded(samples)
        return {name: value.clamp(0) for name, value in batch.items()}

    def unmasked(samples: list[Any]) -> dict[str, Any]:
        return {"labels": torch.as_tensor(np.stack([sample["input_ids"] for sample in samples]))}

    given = DataLoader(Ragged(), collate_fn=filled, balance="auto", batch_size=4, shuffle=True)
    assert len(list(given)) == COUNT // 4
    given.close()
    # more labels than the samples have, and nothing that fills rows up
    few = {**LABELS, "label_tokens": [3] * COUNT}
    given = changed(unmasked, few)
    with pytest.raises(LoaderError, match=r"(have 12 label tokens by|and their labels have 32)"):
        next(iter(given))
    given.close()


def test_a_framework_that_counts_in_the_batches_needs_no_comparison() -> None:
    given = changed(masked, LABELS)
    given._late.leave_labels()
    assert len(list(given)) == COUNT // 4
    given.close()


def test_it_finds_no_label_in_a_microbatch_that_weighs_nothing() -> None:
    """A real sample is in it, where collate_fn makes no batch of none."""
    balance = Balance(accumulate="auto", samples_per_step=3, budgets={"tokens": 9})
    given = DataLoader(
        Alike(), balance=balance, ranks=Ranks(virtual=2), shuffle=True, collate_fn=padded,
        cost=LABELS,
    )  # fmt: skip
    given._late.leave_labels()
    empty = [batch["labels"] for batch, info in given.with_info() if info.empty]
    assert empty
    assert all((labels == -100).all() for labels in empty)
