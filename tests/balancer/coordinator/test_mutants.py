"""The simulated trials notice planted bugs: each within a few seeds of the same 500."""

import importlib
import sys
from pathlib import Path

import pytest

import counterpoise.balancer
from counterpoise.tools.simulated_cluster import trial as simulation_trial
from counterpoise.tools.simulated_cluster.variants import VARIANTS
from tests.balancer.coordinator.mutants import MUTANTS

SEEDS = 500
SOURCE = Path(counterpoise.balancer.__file__).parent
# Planning is not what is mutated; compiled kernels are not compiled again for every mutant.
SHARED = ("plan", "planner", "order")


def plant(folder, number, file, old, new):
    """Copy the balancer with one bug; return its simulation_trial."""
    name = f"mutant_{number}"
    copy = folder / name
    copy.mkdir()
    for path in SOURCE.glob("*.py"):
        text = path.read_text()
        if path.name == file:
            assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
            text = text.replace(old, new)
        (copy / path.name).write_text(text)
    importlib.import_module(name)
    for shared in SHARED:
        sys.modules[f"{name}.{shared}"] = importlib.import_module(f"counterpoise.balancer.{shared}")
    trials = importlib.import_module(f"{name}.simulation_trial")
    trials._reference = simulation_trial._reference
    return trials


def seeds(first):
    """Return the 500 seeds, those of the variant that shows the bug best first."""
    near = range(first % len(VARIANTS), SEEDS, len(VARIANTS))
    return [first, *dict.fromkeys([*near, *range(SEEDS)])]


def is_noticed(trials, seed):
    try:
        return bool(trials.trial(seed).wrong)
    except Exception:
        return True  # a state machine that raises is noticed, too


@pytest.mark.parametrize(
    "number", range(len(MUTANTS)), ids=[mutant[0].replace(" ", "-") for mutant in MUTANTS]
)
def test_a_planted_bug_is_noticed(number, tmp_path, monkeypatch):
    _, file, old, new, first = MUTANTS[number]
    monkeypatch.syspath_prepend(tmp_path)
    trials = plant(tmp_path, number, file, old, new)
    found = next((seed for seed in seeds(first) if is_noticed(trials, seed)), None)
    for module in [each for each in sys.modules if each.startswith(f"mutant_{number}.")]:
        del sys.modules[module]
    assert found is not None
    print(f"seed {found}")


def test_there_are_bugs_enough():
    assert len(MUTANTS) >= 20
