"""Names of samples are texts: others are made so, or refused by type, whoever asks for them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.loader import DataLoader
from counterpoise.workers.sources.costs import checked_name
from counterpoise.workers.sources.interface import Probe, SampleError, checked_probe

NAMES = np.array([f"n{index}" for index in range(12)])
RIGHT: list[Any] = [NAMES.__getitem__, int, np.int64, "n{}".format]
WRONG: list[Any] = [
    lambda index: b"%d" % index, lambda index: Path(f"{index}"), lambda _: None, torch.tensor,
    lambda index: (index,), lambda index: index / 2, lambda _: True,
]  # fmt: skip


def keys_of(key: Any, workers: int, **changes: Any) -> list[Any]:
    loader = DataLoader(
        list(range(12)), batch_size=4, num_workers=workers, shuffle=False, balance="fixed", key=key,
        collate_fn=list, **changes,
    )  # fmt: skip
    return [key for _, info in loader.with_info() for key in info.keys]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("workers", [0, 1])
def test_keys_that_are_texts_or_numbers_are_texts(workers: int, on_error: str) -> None:
    for key in RIGHT:
        found = keys_of(key, workers, on_error=on_error)
        assert [type(each) for each in found] == [str] * 12
        assert found == [str(key(index)) for index in range(12)]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_other_keys_are_refused_by_type_with_every_policy(on_error: str) -> None:
    for key in WRONG:
        kind = type(key(0)).__name__
        for workers in (0, 1) if key is WRONG[0] else (0,):
            with pytest.raises(TypeError, match=rf"key\(0\) returned .*\({kind}\), needed is the"):
                keys_of(key, workers, on_error=on_error)


def test_what_a_probe_says_is_made_plain_or_refused() -> None:
    found = checked_probe(Probe(np.str_("a"), {np.str_("tokens"): torch.tensor(3)}, np.int64(9)))  # type: ignore[dict-item, arg-type]
    assert found == Probe("a", {"tokens": 3}, 9)
    assert [type(each) for each in (found.key, *found.cost, found.cost["tokens"])] == [
        str,
        str,
        int,
    ]
    for name in (0, b"tokens", None):
        with pytest.raises(SampleError, match="a cost is named"):
            checked_probe(Probe("a", {name: 3}))  # type: ignore[dict-item]
    assert checked_name("tokens", "a") == "tokens"
    assert SampleError(7, "is broken").key == "7"  # type: ignore[arg-type]
