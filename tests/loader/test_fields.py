"""Loaders that give a process the fields it needs: those are the whole batch's, to the byte."""

from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader
from tests.loader import balanced_data as made

COUNT = 24
OURS = {
    "padded": ("input_ids", "labels", "attention_mask"),
    "packed": ("input_ids", "labels", "position_ids", "cu_seq_lens", "max_length"),
}
PIXELS = ("pixel_values", "tiles_per_image", "images_per_sample")


def loader(layout: Any, **given: Any) -> DataLoader[Any, Any]:
    balance = Balance(layout=layout, samples_per_step=8, accumulate=2, seed=3)
    return DataLoader(made.Augmented(COUNT), shuffle=True, balance=balance, **given)


def taken(one: DataLoader[Any, Any]) -> list[Any]:
    return [(batch, one.step_info) for batch in one]


def stacked(samples: list[Any]) -> dict[str, Any]:
    """Collate as a user's own function does, which knows of no names that are wanted."""
    return {
        "labels": torch.cat([torch.as_tensor(sample["labels"]) for sample in samples]),
        "names": [sample["name"] for sample in samples],
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("layout", OURS)
@pytest.mark.parametrize("part", ["texts", "pixels", "others", "none"])
def test_what_is_delivered_is_the_whole_batchs(layout: Any, part: str) -> None:
    names = {"texts": OURS[layout], "pixels": PIXELS, "others": ("noise", "name"), "none": ()}[part]
    whole = taken(loader(layout))
    for name in [None, *names] if part == "texts" else [None]:  # each alone, and all of them
        wanted = names if name is None else (name,)
        found = taken(loader(layout, fields=wanted))
        assert [info for _, info in found] == [info for _, info in whole]
        for (batch, _), (every, _) in zip(found, whole, strict=True):
            assert batch.keys() == set(wanted)
            assert all(same(batch[name], every[name]) for name in wanted)


def test_an_array_and_its_lengths_are_fields_of_their_own() -> None:
    class Sounds(made.Augmented):
        def __getitem__(self, index: int) -> dict[str, Any]:
            sample: dict[str, Any] = super().__getitem__(index)
            return {**sample, "sound": np.arange(index, dtype=np.float32)}

    data = Sounds(COUNT)
    for wanted in ({"sound"}, {"sound_lengths"}):
        balance = Balance(layout="packed", samples_per_step=8, accumulate=2)
        one = DataLoader(data, shuffle=True, balance=balance, fields=wanted)
        assert all(batch.keys() == wanted for batch in one)


@pytest.mark.parametrize("given", [{}, {"collate_fn": stacked}], ids=["default", "own"])
def test_collate_functions_of_layout_torch_lose_fields_too(given: Any) -> None:
    def data(**more: Any) -> DataLoader[Any, Any]:
        rows = [{"labels": torch.full((3,), n), "name": f"n{n}"} for n in range(8)]
        table = {"tokens": [3] * 8}
        return DataLoader(
            rows, 2, True, balance="fixed", cost=table, **given, **more
        )  # fmt: skip

    for batch, every in zip(data(fields={"labels"}), data(), strict=True):
        assert batch.keys() == {"labels"}
        assert same(batch["labels"], every["labels"])
    assert [len(batch) for batch in data(fields=())] == [0] * 4


def test_a_function_of_the_info_says_what_a_microbatch_needs() -> None:
    def needs(info: Any) -> set[str]:
        return {"labels"} | ({"pixel_values"} if info.microbatch == info.rank else set())

    found = taken(loader("packed", ranks=Ranks(virtual=2), fields=needs))
    assert {batch.keys() == needs(info) for batch, info in found} == {True}
    assert {len(batch) for batch, _ in found} == {1, 2}


def test_label_tokens_are_counted_where_labels_are_left_out() -> None:
    def weights(**given: Any) -> list[int]:
        balance = Balance(
            layout="packed", samples_per_step=8, accumulate=2, label_tokens="batch", seed=3
        )
        one = DataLoader(made.Augmented(COUNT), shuffle=True, balance=balance, **given)
        return [info.step_label_tokens for _, info in taken(one)]

    assert weights(fields={"pixel_values"}) == weights()
    assert sum(weights())


def test_a_resumed_loader_gives_the_same_fields() -> None:
    wanted = {"labels", "pixel_values"}
    whole = taken(loader("packed"))
    first = loader("packed", fields=wanted)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    second = loader("packed", fields=wanted)
    second.load_state_dict(first.state_dict())
    rest = taken(second)
    assert [info for _, info in rest] == [info for _, info in whole[3:]]
    for (batch, _), (every, _) in zip(rest, whole[3:], strict=True):
        assert all(same(batch[name], every[name]) for name in wanted)
    # what a process needs is its own: another one may go on with this state
    loader("packed").load_state_dict(first.state_dict())


def test_asking_for_a_field_that_was_left_out_says_why() -> None:
    batch = next(iter(loader("packed", fields={"labels"})))
    with pytest.raises(KeyError, match="no 'pixel_values' in this batch, which has labels: its"):
        batch["pixel_values"]
    assert batch.get("pixel_values") is None
    (step,) = list(loader("packed", fields=()).steps())[:1]
    with pytest.raises(KeyError, match="which has no field: its loader was given fields="):
        step.to("cpu").microbatches[0]["labels"]


def test_what_names_no_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="give the names of the batch's fields"):
        loader("packed", fields="labels")
    with pytest.raises(ValueError, match="names of fields are text"):
        loader("packed", fields=[3])
    with pytest.raises(ValueError, match="fields needs a balanced loader"):
        DataLoader([1, 2], fields={"labels"})
    one = DataLoader([1, 2], 1, True, balance="fixed", collate_fn=list, fields={"labels"})
    with pytest.raises(TypeError, match="collate_fn returns a list: return a dict, or leave"):
        next(iter(one))
