"""The same samples in each optimizer step, and the same weights, as in a loop of one's own."""

import pytest

from tests.frameworks.pool import Pool
from tests.frameworks.trainer import assert_close, by_step

CASES = "training_cases"
STEPS = 20
FRAMEWORKS = ("by_hand", "accelerate", "fabric", "lightning")
# each framework once, each number of ranks and of accumulation twice
OFTEN = {("by_hand", 2, 1), ("accelerate", 2, 3), ("fabric", 1, 3), ("lightning", 2, 3)}


@pytest.mark.parametrize(
    ("framework", "ranks", "accumulate"),
    [
        pytest.param(*case, marks=[] if case in OFTEN else pytest.mark.long)
        for case in [(f, r, a) for f in FRAMEWORKS for r in (1, 2) for a in (1, 3)]
    ],
)
def test_a_framework_trains_as_a_loop_of_ones_own(
    one: Pool, two: Pool, framework: str, ranks: int, accumulate: int
) -> None:
    epochs = STEPS // 4
    named = {"accumulate": accumulate, "epochs": epochs}
    found = {1: one, 2: two}[ranks].run(f"{CASES}:trained", framework=framework, **named)
    ((seen, weights),) = one.run(f"{CASES}:reference", ranks=ranks, **named)
    expected = by_step(seen)
    assert by_step([pair for rank, _ in found for pair in rank]) == expected
    assert len(expected) == STEPS
    for _, trained in found:
        assert_close(trained, weights)
