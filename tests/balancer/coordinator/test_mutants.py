"""The simulated trials notice planted bugs: each within a few seeds of the same 500."""

import pytest

from counterpoise.tools.simulated_cluster.trial import _reference, trial
from counterpoise.tools.simulated_cluster.variants import VARIANTS
from tests.balancer.coordinator.mutants import MUTANTS
from tests.balancer.coordinator.planting import Mutant, edit

SEEDS = 500


def seeds(first: int) -> list[int]:
    """Return the 500 seeds, those of the variant that shows the bug best first."""
    near = range(first % len(VARIANTS), SEEDS, len(VARIANTS))
    return [first, *dict.fromkeys([*near, *range(SEEDS)])]


def is_noticed(seed: int) -> bool:
    """Whether a trial goes wrong; a state machine that raises is noticed, too."""
    try:
        return bool(trial(seed).wrong)
    except Exception:
        return True


@pytest.fixture(scope="module", autouse=True)
def _right_references() -> None:
    """Find out what every variant delivers before a bug is planted."""
    for variant in VARIANTS:
        _reference(variant)


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=[mutant.what.replace(" ", "-") for mutant in MUTANTS]
)
def test_a_planted_bug_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    for plant in mutant.plants:
        plant(monkeypatch)
    found = next((seed for seed in seeds(mutant.seed) if is_noticed(seed)), None)
    assert found is not None
    print(f"seed {found}")


def test_there_are_bugs_enough() -> None:
    assert len(MUTANTS) >= 20


@pytest.mark.parametrize("old", ["self.last += 2", "self"])
def test_an_edit_that_does_not_match_once_is_an_error(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="occurs"):
        edit("coordinator.run.leases:LeaseTable.grant", old, "None")(monkeypatch)
