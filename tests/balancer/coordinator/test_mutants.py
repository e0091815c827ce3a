"""The simulated trials notice planted bugs: each within a few seeds of the same 1,000."""

from collections.abc import Sequence

import pytest

from tests.balancer.coordinator.mutants import MUTANTS
from tests.balancer.coordinator.planting import Mutant, edit
from tests.balancer.coordinator.sharer_mutants import SHARER_MUTANTS
from tests.simulation.trial import _reference, trial
from tests.simulation.variants import (
    SHARED_VARIANTS,
    VARIANTS,
)

SEEDS = 1000


def seeds(first: int, variants: Sequence[str]) -> list[int]:
    """Return the 1,000 seeds, those of the variant that shows the bug best first."""
    near = range(first % len(variants), SEEDS, len(variants))
    return [first, *dict.fromkeys([*near, *range(SEEDS)])]


def is_noticed(seed: int, variants: Sequence[str]) -> bool:
    """Whether a trial goes wrong; a state machine that raises is noticed, too."""
    try:
        return bool(trial(seed, variants=variants).wrong)
    except Exception:
        return True


@pytest.fixture(scope="module", autouse=True)
def _right_references() -> None:
    """Find out what every variant delivers before a bug is planted."""
    for variant in (*VARIANTS, *SHARED_VARIANTS):
        _reference(variant)


def named(mutants: Sequence[Mutant]) -> list[str]:
    return [mutant.what.replace(" ", "-") for mutant in mutants]


def plant_and_notice(
    mutant: Mutant, variants: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for plant in mutant.plants:
        plant(monkeypatch)
    found = next((s for s in seeds(mutant.seed, variants) if is_noticed(s, variants)), None)
    assert found is not None
    print(f"seed {found}")


@pytest.mark.parametrize("mutant", MUTANTS, ids=named(MUTANTS))
def test_a_planted_bug_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_and_notice(mutant, VARIANTS, monkeypatch)


@pytest.mark.parametrize("mutant", SHARER_MUTANTS, ids=named(SHARER_MUTANTS))
def test_a_planted_bug_of_shared_ranks_is_noticed(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_and_notice(mutant, SHARED_VARIANTS, monkeypatch)


def test_there_are_bugs_enough() -> None:
    assert len(MUTANTS) >= 20
    assert len(SHARER_MUTANTS) >= 10


@pytest.mark.parametrize("old", ["self.last += 2", "self"])
def test_an_edit_that_does_not_match_once_is_an_error(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="occurs"):
        edit("coordinator.run.leases:LeaseTable.grant", old, "None")(monkeypatch)
