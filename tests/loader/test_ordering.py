"""Microbatches arrive in the order of their pipeline's plan, whoever plans and whoever decodes."""

import json
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import DataLoader
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

FORWARD = [{"per_thousand": {"tiles": 9000}}, {"per_thousand": {"tokens": 1000, "token_pairs": 9}}]
Delivered = list[tuple[int, int, tuple[str, ...]]]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ordering") / "costs.json"
    path.write_text(json.dumps({"placement": [0, 1], "passes": {"F": FORWARD}}))
    return str(path)


def make(profile: str | None, workers: int = 0, **changes: Any) -> DataLoader:
    ordered: dict[str, Any] = {}
    if profile is not None:
        ordered = {"ordering": "two_opt", "pipeline": profile}
    return balanced_loader(
        made.Augmented(96), grouping="balanced", samples_per_step=24, accumulate=4,
        ranks=Ranks(virtual=2), shuffle=True, collate_fn=made.as_list, num_workers=workers,
        **ordered, **changes,
    )  # fmt: skip


def take(loader: DataLoader) -> Delivered:
    found = [
        (step.number, info.rank, tuple(info.keys)) for step in loader.steps() for info in step.infos
    ]
    loader.close()
    return found


@pytest.fixture(scope="module")
def expected(profile: str) -> Delivered:
    return take(make(profile))


def test_a_step_has_the_microbatches_of_the_given_order_in_another(expected: Delivered) -> None:
    given = take(make(None))
    assert given != expected
    assert {(step, keys) for step, _, keys in given} == {(s, keys) for s, _, keys in expected}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_order_is_the_same_with_any_number_of_workers(
    profile: str, expected: Delivered, workers: int
) -> None:
    assert take(make(profile, workers)) == expected


def test_the_order_is_the_same_after_resume(profile: str, expected: Delivered) -> None:
    loader = make(profile)
    steps = loader.steps()
    next(steps)
    next(steps)
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    resumed = make(profile)
    resumed.load_state_dict(state)
    assert take(resumed) == [one for one in expected if one[0] >= 2]
