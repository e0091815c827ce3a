"""What the identity of data tells apart, and what it does not."""

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from counterpoise.workers.sources.data_identity import KnownData
from counterpoise.workers.sources.interface import source_name

TEXTS: Any = [f"text {each}" for each in range(200)]
NUMBERS: Any = list(range(200))


@pytest.mark.parametrize(
    "other",
    [
        TEXTS[1:] + TEXTS[:1], [*TEXTS[:-1], "another"], tuple(TEXTS), Subset(TEXTS, range(200)),
        ConcatDataset([TEXTS]), NUMBERS,
    ],
)  # fmt: skip
def test_other_lists_are_other_data(other: Any) -> None:
    known = KnownData(TEXTS, 200, str)
    for name in ("identity", "rank_identity"):
        assert getattr(known, name) == getattr(KnownData(list(TEXTS), 200, str), name)
        assert getattr(known, name) != getattr(KnownData(other, 200, str), name)


def test_the_order_inside_of_a_split_is_a_part() -> None:
    one, other = (KnownData(ConcatDataset([Subset(TEXTS, each)]), 2) for each in ([0, 1], [1, 0]))
    assert one.identity != other.identity
    assert one.rank_identity != other.rank_identity


def test_rows_of_hugging_face_are_the_same_data_whatever_their_fingerprints() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"number": [*range(200)], "text": [f"{number} {'a' * 600}" for number in range(200)]}
    one = datasets.Dataset.from_dict(rows)
    other = datasets.Dataset(one.data, fingerprint="by chance")
    turned = one.select(range(199, -1, -1))
    loud = one.with_transform(lambda _: pytest.fail("a row was transformed"))
    identities = [
        (known.look_at_samples().identity, known.rank_identity)
        for known in (KnownData(data, 200, str) for data in (one, other, loud, turned))
    ]
    assert identities[0] == identities[1] == identities[2]
    assert identities[0][0] != identities[3][0]
    assert identities[0][1] != identities[3][1]
    assert KnownData(one, 200).identity != KnownData(other, 200).identity  # in a plain loader


def test_ranks_may_have_a_subclass_of_hugging_faces() -> None:
    datasets = pytest.importorskip("datasets")

    class Prepared(datasets.Dataset):  # type: ignore[name-defined]
        """As Axolotl makes on the rank that prepares the data for others."""

    loaded = datasets.Dataset.from_dict({"number": [*range(20)]})
    prepared = Prepared(loaded.data)
    assert source_name(prepared) == source_name(loaded) == "Dataset"
    one, other = (KnownData(data, 20, str).look_at_samples() for data in (loaded, prepared))
    assert (one.identity, one.rank_identity) == (other.identity, other.rank_identity)


def test_a_list_that_has_grown_is_known_by_its_first() -> None:
    assert KnownData(TEXTS, 200).identity_of_first(150) == KnownData(TEXTS[:150], 150).identity


def records(first: int = 0) -> Any:
    return [
        {"text": "a", "ids": [each, 7], "x": torch.zeros(2)} for each in range(first, 20 + first)
    ]


@pytest.mark.parametrize(
    ("data", "other"),
    [
        (records(), records(1)),
        (records(), records()[::-1]),
        (Subset(records(), range(9)), Subset(records(1), range(9))),
        (ConcatDataset([records()]), ConcatDataset([records(1)])),
        (torch.arange(20), torch.arange(20) + 1),
        (TensorDataset(torch.zeros(20), torch.ones(20)), TensorDataset(*[torch.zeros(20)] * 2)),
    ],
)
def test_samples_in_memory_are_looked_at_by_balanced_loaders(data: Any, other: Any) -> None:
    one, two = (KnownData(each, len(each), str) for each in (data, other))
    assert (
        one.look_at_samples().identity
        == one.look_at_samples().identity
        != two.look_at_samples().identity
    )
    assert one.rank_identity != two.rank_identity
    assert one.identity == two.identity or isinstance(data, torch.Tensor)  # in a plain loader


def test_samples_that_collating_changes_stay_what_they_were() -> None:
    data = records()
    known = KnownData(data, 20, str).look_at_samples()
    before = known.identity
    data[0]["mask"] = data[0].pop("ids")
    assert known.identity == before
