"""check_equivalence finds nothing in a model that is right, and each fault by its name."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader, check_equivalence
from counterpoise.loader.collate import equivalence as named
from counterpoise.loader.collate.equivalence import DROPOUT, Equivalence

VOCABULARY, WIDTH = 17, 8


class Tiny(nn.Module):
    """One layer of causal attention over tokens and learned positions, with faults to choose."""

    def __init__(self, *faults: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.faults = faults
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(128, WIDTH)
        self.mix = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.dropout = nn.Dropout(0.5 if "dropout" in faults else 0.0)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Return logits (rows, length, vocabulary)."""
        ids = batch["input_ids"]
        count = torch.arange(ids.shape[1]).expand_as(ids)
        places = batch.get("position_ids", count)
        held = self.tokens(ids) + self.places(count if "positions" in self.faults else places)
        keys, values = self.mix(self.dropout(held)).chunk(2, -1)
        scores = held @ keys.transpose(1, 2)
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril().expand_as(scores)
        if "borders" not in self.faults:
            owner = (places == 0).cumsum(1)
            seen = seen & (owner[:, :, None] == owner[:, None, :])
        if "padding" in self.faults:
            seen = torch.ones_like(seen)
        elif "attention_mask" in batch:
            seen = seen & batch["attention_mask"].bool()[:, None, :]
        return self.out(scores.masked_fill(~seen, -1e9).softmax(-1) @ values + held)


def loss_sum(model: Any, batch: dict[str, Any]) -> Tensor:
    """Return the sum over label tokens, with what the model's faults add."""
    logits, targets = model(batch)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    smoothing = 0.1 if "smoothing" in model.faults else 0.0
    total = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    if "z-loss" in model.faults:
        total = total + 0.1 * logits.logsumexp(-1).square().sum()
    return total / int((targets != -100).sum()) if "mean" in model.faults else total


class Texts:
    """Samples of several lengths, some labels left out."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = np.random.default_rng(index).integers(2, VOCABULARY, 4 + index * 5 % 9)
        return {"input_ids": ids, "labels": np.where(np.arange(len(ids)) % 4 == 3, -100, ids)}


def cost(sample: dict[str, Any]) -> dict[str, int]:
    return {"tokens": len(sample["input_ids"])}


def loader(layout: str = "packed", **more: Any) -> DataLoader[Any, Any]:
    options: dict[str, Any] = {"budgets": {"tokens": 30}, "samples_per_step": 8, "layout": layout}
    balance = Balance(accumulate="auto", **options)
    given = {"cost": cost, "shuffle": True, "ranks": Ranks(virtual=2), **more}
    return DataLoader(Texts(), balance=balance, **given)


def check(*faults: str, layout: str = "packed", **more: Any) -> Equivalence:
    given = loader(layout)
    try:
        return check_equivalence(Tiny(*faults).double(), given, loss=loss_sum, **more)
    finally:
        given.close()


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("faults", [(), ("smoothing",)])
def test_a_model_that_is_right_is_the_same_in_every_layout(
    layout: str, faults: tuple[str, ...]
) -> None:
    # label smoothing over label tokens is a sum over them like any other
    found = check(*faults, layout=layout, steps=2)
    assert found.ok
    assert found.causes == ()
    assert [each.layout for each in found.comparisons] == ["padded", "packed", "balanced"]
    assert max(max(each.loss, each.gradient) for each in found.comparisons) < 1e-9


@pytest.mark.parametrize(
    ("fault", "cause", "differing"),
    [
        ("borders", named.PACKED, {"packed", "balanced"}),
        ("positions", named.PACKED, {"packed", "balanced"}),
        ("padding", named.PADDING, {"padded", "packed", "balanced"}),
        ("z-loss", named.NOT_A_SUM, {"padded", "packed", "balanced"}),
        ("mean", named.NOT_A_SUM, {"padded", "packed", "balanced"}),
    ],
)
def test_a_fault_is_found_and_named(fault: str, cause: str, differing: set[str]) -> None:
    found = check(fault)
    assert not found.ok
    assert {each.layout for each in found.comparisons if each.differs} == differing
    assert found.causes == (cause,)
    assert f"* {cause}" in str(found)


class LikeHuggingFace(nn.Module):
    """Gives its own loss, a mean over label tokens, and perhaps a z-loss over all tokens."""

    def __init__(self, z_loss: float) -> None:
        super().__init__()
        self.inner, self.z_loss = Tiny(), z_loss

    def forward(self, input_ids: Tensor, labels: Any = None, **told: Any) -> Any:
        logits = self.inner({"input_ids": input_ids, **told})
        output = SimpleNamespace(logits=logits, loss=None)
        if labels is not None:
            targets = labels[:, 1:].flatten()
            output.loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets)
            output.loss = output.loss + self.z_loss * logits.logsumexp(-1).square().mean()
        return output


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_a_loss_of_its_own_that_is_not_the_cross_entropy_is_named(z_loss: float) -> None:
    given = loader()
    found = check_equivalence(LikeHuggingFace(z_loss).double(), given)
    given.close()
    assert found.ok is (z_loss == 0.0)
    assert found.causes == ((named.PADDING,) if z_loss else ())  # which tells of z-losses


def test_dropout_is_named_and_the_rest_is_compared_without_it() -> None:
    found = check("dropout")
    assert found.ok
    assert found.causes == (DROPOUT,)


def test_nothing_of_model_and_loader_is_changed() -> None:
    given, model = loader(), Tiny("dropout").double()
    begun = given.steps()
    next(begun)
    before, random = given.state_dict(), torch.get_rng_state()
    model.out.weight.grad = torch.ones_like(model.out.weight)
    check_equivalence(model, given, loss=loss_sum)
    assert given.state_dict() == before
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    assert torch.equal(model.out.weight.grad, torch.ones_like(model.out.weight))
    assert model.places.weight.grad is None
    given.close()


def test_label_tokens_that_are_counted_wrong_are_named() -> None:
    def none(sample: dict[str, Any]) -> dict[str, int]:
        return {**cost(sample), "label_tokens": 0}

    given = loader(cost=none)
    given._balanced._labels.left = 0  # else it is an error at once
    found = check_equivalence(Tiny().double(), given, loss=loss_sum)
    given.close()
    assert [each.layout for each in found.comparisons if each.differs] == ["balanced"]
    assert len(found.causes) == 1
    assert found.causes[0].startswith("label tokens: the loader counts 0 in the steps")


def test_batches_that_cannot_be_taken_apart_and_an_epoch_without_steps_are_refused() -> None:
    own: DataLoader[Any, Any] = DataLoader(
        Texts(), balance=Balance(samples_per_step=2), shuffle=True, cost=cost,
        collate_fn=lambda samples: {"rows": samples}, ranks=Ranks(virtual=1),
    )  # fmt: skip
    with pytest.raises(ValueError, match="only batches of layout 'padded' or 'packed'"):
        check_equivalence(Tiny(), own, loss=loss_sum)
    own.close()
    ended = loader()
    last = list(ended.with_info())[-1][1]
    ended.load_state_dict(ended.state_dict(after=last))
    with pytest.raises(ValueError, match="no step left in this epoch"):
        check_equivalence(Tiny(), ended, loss=loss_sum)
    ended.close()
