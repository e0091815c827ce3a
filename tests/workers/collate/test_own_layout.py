"""A layout of the user's own: local, remote, in spawned workers, resumed, checked."""

import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from counterpoise import Layout
from counterpoise.loader import (
    Balance,
    BalancedBatchSampler,
    DataLoader,
    check_equivalence,
    collate_samples,
)

FIELDS = {
    "speech": "pad 0.5", "depth": "concatenate, pad -1", "weights": "tokens 0", "note": "list",
    "speaker": "stack", "speech_mask": "mask of speech",
    "speech_ends": "cumulative lengths of speech",
}  # fmt: skip
PACKED, PADDED = Layout("mine", FIELDS, "packed"), Layout("mine", FIELDS, "padded")
ALONE = Layout(
    "alone", {"mel": "pad 0", "labels": "pad -100", "mel_mask": "mask of mel", "words": "list"}
)
COUNT = 16


class Speech:
    """Samples with fields that no built-in layout takes as these are."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng(index)
        n = 3 + index % 5
        ids = rng.integers(2, 17, n)
        return {
            "input_ids": ids, "labels": ids, "weights": rng.random(n).astype(np.float32),
            "speech": rng.random((1 + index % 3, 2 + index % 2)).astype(np.float32),
            "depth": rng.random((1, 2 + index % 2)), "note": {"n": index},
            "speaker": np.array([index]),
        }  # fmt: skip


class Mels:
    """Samples without tokens."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        labels = np.arange(1 + index % 4)
        return {"mel": np.full((2 + index % 3, 4), index), "labels": labels, "words": f"w{index}"}


def cost(sample: dict[str, Any]) -> dict[str, int]:
    return {"tokens": len(sample["input_ids" if "input_ids" in sample else "mel"])}


def loader(layout: Any = PACKED, data: Any = None, **given: Any) -> DataLoader[Any, Any]:
    balance = Balance(samples_per_step=8, accumulate=2, layout=replace(layout, pad_id=1), seed=3)
    data = data or Speech()
    return DataLoader(data, shuffle=True, balance=balance, cost=cost, **given)


def taken(one: DataLoader[Any, Any]) -> list[Any]:
    try:
        return list(one)
    finally:
        one.close()


def same(one: Any, other: Any) -> bool:
    """Return whether two batches, or lists of them, are the same."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def test_every_rule_is_what_it_says() -> None:
    rows = [Speech()[index] for index in (0, 4)]
    batch = collate_samples(rows, PACKED)
    assert batch["weights"].shape == batch["input_ids"].shape == (1, 10)
    assert batch["speech"].shape == (2, 2, 2)
    assert batch["speech_lengths"].tolist() == [[1, 2], [2, 2]]
    assert batch["speech_mask"].tolist() == [[1, 0], [1, 1]]
    assert batch["speech_ends"].tolist() == [0, 1, 3]
    assert (batch["speech"][0, 1] == 0.5).all()
    assert batch["note"] == [{"n": 0}, {"n": 4}]
    assert batch["speaker"].tolist() == [[0], [4]]
    ragged = [Speech()[index] for index in (0, 1)]
    assert (collate_samples(ragged, PADDED)["depth"][0, 2], 2) == (-1, 2)


LAYOUTS = {"packed": (PACKED, Speech()), "padded": (PADDED, Speech()), "alone": (ALONE, Mels())}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Any]]:
    """Return the batches of each layout that a loader without workers makes."""
    return {name: taken(loader(*each)) for name, each in LAYOUTS.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_workers_make_the_same_batches(name: str, expected: Any) -> None:
    assert len(expected[name]) == 4
    assert same(taken(loader(*LAYOUTS[name], num_workers=2)), expected[name])


@pytest.mark.usefixtures("through_balancer")
def test_behind_a_balancer_batches_are_the_same(expected: Any) -> None:
    assert same(taken(loader(*LAYOUTS["packed"], num_workers=1)), expected["packed"])


def test_it_is_a_collate_fn_of_torchs_loader() -> None:
    collate = partial(collate_samples, layout=replace(PACKED, pad_id=1))
    rows = [Speech()[index] for index in range(COUNT)]
    found = list(torch.utils.data.DataLoader(rows, 4, collate_fn=collate))  # type: ignore[arg-type]
    spawned = pickle.loads(pickle.dumps(collate))  # what workers that are spawned get
    assert same(found, [spawned(rows[k : k + 4]) for k in range(0, COUNT, 4)])


def test_fields_that_are_wanted_are_the_whole_batchs() -> None:
    whole, wanted = taken(loader()), {"speech_mask", "weights", "speech_lengths"}
    found = taken(loader(fields=wanted))
    assert all(batch.keys() == wanted for batch in found)
    assert same(
        [{name: batch[name] for name in wanted} for batch in whole], [dict(b) for b in found]
    )


def test_it_resumes_inside_a_step_and_another_layout_does_not() -> None:
    whole = taken(loader())
    one = loader()
    batches = iter(one)
    first = next(batches)
    ledger = one.state_dict()
    one.close()
    assert same(first, whole[0])
    again = loader()
    again.load_state_dict(ledger)
    assert same(taken(again), whole[1:])
    other = loader(Layout("mine", {**FIELDS, "speech": "pad 0"}, "packed"))
    with pytest.raises(ValueError, match="where only the very same plan can continue"):
        other.load_state_dict(ledger)


class Weighted(nn.Module):
    """Sees each token, its weight, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(17, 4), nn.Linear(4, 17)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Return logits (rows, length, vocabulary)."""
        found: Tensor = self.out(self.embed(batch["input_ids"]) * batch["weights"][..., None])
        return found


def loss_sum(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    assert batch["speech"].ndim == 3  # by its rule in each layout
    logits, targets = model(batch)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    return functional.cross_entropy(logits, targets, reduction="sum")


@pytest.mark.parametrize("layout", [PACKED, PADDED])
def test_a_model_is_checked_on_it(layout: Layout) -> None:
    given = loader(layout)
    try:
        found = check_equivalence(Weighted().double(), given, loss=loss_sum)
        bad = check_equivalence(
            Weighted().double(), given, loss=lambda m, b: loss_sum(m, b) / len(b["speech"])
        )
    finally:
        given.close()
    assert found.ok, str(found)
    assert not bad.ok  # the experiments that say why take its fields, too


def test_one_without_tokens_cannot_be_checked_and_says_why() -> None:
    given = loader(ALONE, Mels())
    with pytest.raises(ValueError, match="layout 'alone' has no base, and what it makes cannot be"):
        check_equivalence(Weighted(), given, loss=loss_sum)
    given.close()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"mel": [1.0], "labels": [1], "words": "a", "x": 3},
         "field 'x' comes as int in sample 0, and has no rule .*add 'x': 'stack' to the fields of"),
        ({"mel": [1.0], "labels": [1], "words": "", "mel_mask": [1]}, "makes of mel: leave it out"),
        ({"mel": [1.0], "labels": [1]}, ""),
        ({"mel": "a", "labels": [1]}, "'mel' comes as str in sample 0; make them all alike"),
    ],
)  # fmt: skip
def test_samples_that_its_rules_do_not_fit_are_refused(row: Any, message: str) -> None:
    if not message:
        assert collate_samples([row], ALONE)["mel"].tolist() == [[1.0]]
        return
    with pytest.raises(ValueError, match=message):
        collate_samples([row], ALONE)


def test_what_takes_no_layout_of_ones_own_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"give collate_fn=partial\(collate_samples, layout=...\)"):
        BalancedBatchSampler({"tokens": [3] * 8}, Balance(layout=PACKED))
    with pytest.raises(ValueError, match="collate_fn belongs to layout 'torch', not 'mine'"):
        loader(collate_fn=list)
    with pytest.raises(
        ValueError, match="layout 'alone' has no base, and so no tokens to be filled"
    ):
        collate_samples([], ALONE, align=8)


def test_a_list_of_arrays_is_theirs_as_they_are() -> None:
    rows: list[dict[str, Any]] = [{"mel": np.ones(3)}, {"mel": torch.ones(2, 2)}, {"mel": None}]
    assert list(map(np.shape, collate_samples(rows, Layout("l", {"mel": "list"}))["mel"])) == [
        (3,), (2, 2), (),
    ]  # fmt: skip
