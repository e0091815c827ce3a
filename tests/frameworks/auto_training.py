"""`balance="auto"` in four loops written for torch: gradients as of one process."""

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.pool import Pool
from tests.frameworks.trainer import assert_close, by_step

CASES = "auto_loops"
FRAMEWORKS = ("by_hand", "accelerate", "lightning", "trainer")


ALWAYS_TRIED = {("by_hand", "token", 3), ("accelerate", "sample", 2), ("trainer", "token", 3)}
LOOPS_TRIED = [
    (framework, *how)
    for how in (("sample", 2), ("token", 3), ("sample", 1), ("token", 1))
    for framework in FRAMEWORKS
]


@pytest.mark.parametrize(
    ("framework", "per", "accumulate"),
    [
        pytest.param(*case, marks=[] if case in ALWAYS_TRIED else pytest.mark.long)
        for case in LOOPS_TRIED
    ],
)
def test_a_loop_written_for_torch_has_the_gradients_of_one_process(
    one: Pool, two: Pool, tmp_path: Path, framework: str, per: str, accumulate: int
) -> None:
    # of 76 samples 4 are left for the 6 microbatches of the last step: two have a sample that
    # another has, and weigh nothing
    count = 76 if per == "token" else 96
    named: dict[str, Any] = {
        "framework": framework, "per": per, "accumulate": accumulate, "count": count,
        "epochs": 1 if framework == "trainer" else 2,
    }  # fmt: skip
    found = two.run(f"{CASES}:trained", folder=str(tmp_path), **named)
    ((seen, gradients),) = one.run(f"{CASES}:reference", ranks=2, **named)
    assert len(gradients) == len(by_step(seen))
    for _, ours in found:
        for mine, theirs in zip(ours, gradients, strict=True):
            assert_close(mine, theirs)
    steps = by_step([pair for rank, _ in found for pair in rank])
    expected = by_step(seen)
    for step in [n for n, some in expected.items() if len(some) < 2 * accumulate]:
        steps[step] = sorted(set(steps[step]))
    assert steps == expected
    if per == "sample":
        assert {len(some) for rank, _ in found for _, some in rank} == {4}
