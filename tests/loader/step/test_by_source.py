"""Losses by source: sums of what each sample lost, in every layout, over microbatches and ranks."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import counterpoise as cp
from tests.flat_options import flat_balance

VOCABULARY = 32


def samples(name: str, count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(len(name))
    found = []
    for length in rng.integers(3, 20, count).tolist():
        ids = rng.integers(0, VOCABULARY, length)
        found.append({"input_ids": ids, "labels": np.where(rng.random(length) < 0.3, -100, ids)})
    return found


def mixture() -> cp.Mixture:
    parts = {name: (samples(name, count), weight)
             for name, count, weight in (("a", 30, 3), ("bb", 9, 1), ("ccc", 5, 0))}  # fmt: skip
    return cp.Mixture(parts, epoch=64)


def loader(ranks: int = 1, **options: Any) -> Any:
    given = {"layout": "packed", **options}
    balance = flat_balance(
        budgets={"tokens": 96}, samples_per_step=16, accumulate="auto", oversize="refuse", **given
    )
    return cp.DataLoader(
        mixture(), balance=balance, shuffle=True, ranks=cp.Ranks(virtual=ranks),
        cost=lambda sample: {"tokens": len(sample["input_ids"])},
    )  # fmt: skip


LOGITS = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))


def losses_of(batch: Any, form: str) -> torch.Tensor:
    """Return what each token loses, as one of the usual training loops has it."""
    logits, labels = LOGITS[batch["input_ids"]], batch["labels"]
    if form == "cut":
        before, after = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        found = cross_entropy(before, after, reduction="none")
        return found.reshape(len(labels), -1)
    # As transformers: labels are moved by one, and nothing follows the last.
    moved = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    found = cross_entropy(logits.flatten(0, 1), moved.flatten(), reduction="none")
    return found if form == "flat" else found.reshape(labels.shape)


def expected(step: Any) -> dict[str, list[float]]:
    """Return the sum and the number of losses by source, sample by sample."""
    found = {"a": [0.0, 0], "bb": [0.0, 0], "ccc": [0.0, 0]}
    data = mixture()
    by_key = {data.rows.key(row): row for row in range(len(data.rows))}
    for info in step.infos:
        for key in info.keys:
            sample = data.rows[by_key[key]]
            ids, labels = (torch.tensor(sample[name]) for name in ("input_ids", "labels"))
            own = cross_entropy(LOGITS[ids[:-1]], labels[1:], reduction="none")
            found[data.find_source(key)][0] += float(own.sum())
            found[data.find_source(key)][1] += int((labels[1:] != -100).sum())
    return found


@pytest.mark.parametrize("form", ["cut", "moved", "flat"])
@pytest.mark.parametrize(
    "options", [{}, {"layout": "padded"}, {"align": {"tokens": 8}}, {"buckets": {"tokens": [96]}}]
)
def test_tokens_add_up_to_each_samples_own(form: str, options: dict[str, Any]) -> None:
    for step in loader(2, **options).steps():
        losses = [losses_of(batch, form) for batch in step.microbatches]
        found = cp.loader.loss_by_source(losses, step)
        for name, (total, count) in expected(step).items():
            assert found[name].count == count
            assert found[name].total == pytest.approx(total, rel=1e-5)
        assert math.isnan(found["ccc"].mean)
        counted = sum(each.count for each in found.values())
        assert counted == step.infos[0].step_label_tokens


def test_samples_and_single_microbatches() -> None:
    for batch, info in loader().with_info():
        losses = torch.arange(1.0, len(info.keys) + 1)
        found = cp.loader.loss_by_source(losses, info)
        assert sum(each.total for each in found.values()) == float(losses.sum())
        assert {name: each.count for name, each in found.items()} == dict(info.sources)
        both = cp.loader.loss_by_source(
            [losses, losses_of(batch, "cut")], [info, info], [batch, batch]
        )
        one = cp.loader.loss_by_source(losses_of(batch, "cut"), info, batch)
        assert both["a"].total == pytest.approx(found["a"].total + one["a"].total)


def test_ranks_add_up_to_what_one_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks add up their sums in the same order of names."""

    def keep(sums: torch.Tensor, group: list[torch.Tensor]) -> None:
        group.append(sums.clone())

    monkeypatch.setattr("torch.distributed.all_reduce", keep)
    for step in loader(2).steps():
        of_ranks = list[torch.Tensor]()
        for own in step.by_rank():
            losses = [losses_of(batch, "cut") for batch in own.microbatches]
            cp.loader.loss_by_source(losses, own, group=of_ranks)
        losses = [losses_of(batch, "cut") for batch in step.microbatches]
        whole = cp.loader.loss_by_source(losses, step)
        totals, counts = sum(of_ranks).tolist()
        assert len(of_ranks) == 2
        assert counts == [each.count for each in whole.values()]
        assert totals == pytest.approx([each.total for each in whole.values()])


def test_what_cannot_be_added_up_is_refused() -> None:
    step = next(loader().steps())
    losses = [losses_of(batch, "cut") for batch in step.microbatches]
    with pytest.raises(ValueError, match="give one of each microbatch"):
        cp.loader.loss_by_source(losses[:1], step)
    with pytest.raises(ValueError, match="one loss a token"):
        cp.loader.loss_by_source([each[:, :-2] for each in losses], step)
    with pytest.raises(ValueError, match="one loss a sample"):
        cp.loader.loss_by_source(losses[0], step.infos[0])
    plain = cp.DataLoader([torch.zeros(1)] * 4, 2, balance="fixed", shuffle=True)
    next(iter(plain))
    info: Any = plain.step_info
    with pytest.raises(ValueError, match="need the data of a Mixture"):
        cp.loader.loss_by_source(torch.zeros(2), info)
