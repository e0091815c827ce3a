"""The matrix: each framework trains on the samples of the reference, to its weights, and resumes.

The reference of a balanced run is one process that plays all ranks; that of a plain one is torch's
DataLoader under the same framework. A checkpoint is saved at a step drawn for each case, by the
framework's own means.
"""

import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.pool import Pool
from tests.frameworks.trainer import assert_close, by_step

CASES = "training_cases"
STEPS = 10
# the framework's loop, and what its loss is a mean of
LOOPS = {
    "on_accelerate": "sample", "on_fabric": "sample", "on_lightning": "sample",
    "on_trainer": "label", "on_torchtitan": "token",
}  # fmt: skip
MATRIX = [
    (framework, kind, ranks, accumulate)
    for framework in LOOPS
    for kind in ("balanced", "plain")
    for ranks in (1, 2)
    for accumulate in (1, 3)
]
MATRIX += [(framework, "auto", 2, 3) for framework in LOOPS]
# Two of each framework, which cover every value of the settings, and all pairs of them together;
# torchtitan's calls run with `make test-all`.
OFTEN = {
    ("on_accelerate", "auto", 2, 3), ("on_accelerate", "plain", 1, 1),
    ("on_fabric", "balanced", 1, 3), ("on_fabric", "plain", 2, 1),
    ("on_lightning", "balanced", 2, 3), ("on_lightning", "plain", 1, 1),
    ("on_trainer", "auto", 2, 3), ("on_trainer", "plain", 2, 3),
}  # fmt: skip


# Before 5.0 transformers' Trainer resumes inside a later epoch than the first with another order,
# whoever loads: with torch's DataLoader as with ours.
RESUMES_LATER_EPOCHS = int(version("transformers").partition(".")[0]) >= 5


def joined(ranks: list[Any]) -> Any:
    """Return the samples of each step, of all ranks."""
    return by_step([pair for seen, _ in ranks for pair in seen])


@pytest.mark.parametrize(
    ("framework", "kind", "ranks", "accumulate"),
    [pytest.param(*case, marks=[] if case in OFTEN else pytest.mark.long) for case in MATRIX],
)
def test_a_framework_trains_as_the_reference_and_goes_on_from_its_checkpoint(
    one: Pool, two: Pool, tmp_path: Path, framework: str, kind: str, ranks: int, accumulate: int
) -> None:
    pool, case = {1: one, 2: two}[ranks], f"{framework} {kind} {ranks} {accumulate}"
    at = random.Random(case).randrange(1, STEPS)
    named: dict[str, Any] = {"accumulate": accumulate, "folder": str(tmp_path), "save": at}
    found = pool.run(f"{CASES}:trained", framework=framework, kind=kind, **named)
    if kind == "plain":
        expected = pool.run(f"{CASES}:trained", framework=framework, kind="torch", **named)
        assert [seen for seen, _ in found] == [seen for seen, _ in expected]
    else:
        per = LOOPS[framework]
        named_here = {"per": per, "ranks": ranks, "kind": kind, "accumulate": accumulate}
        expected = one.run(f"{CASES}:reference", **named_here)
        assert joined(found) == joined(expected)
    assert len(joined(found)) == STEPS
    for _, weights in found:
        assert_close(weights, expected[0][1])

    again = pool.run(f"{CASES}:trained", framework=framework, kind=kind, resume=True, **named)
    wanted = [([pair for pair in seen if pair[0] >= at], weights) for seen, weights in found]
    if framework == "on_trainer" and kind == "plain" and not RESUMES_LATER_EPOCHS:
        wanted = pool.run(
            f"{CASES}:trained", framework=framework, kind="torch", resume=True, **named
        )
    for (late, resumed), (seen, weights) in zip(again, wanted, strict=True):
        assert late == seen
        assert_close(resumed, weights)


@pytest.mark.long
@pytest.mark.parametrize("framework", LOOPS)
def test_a_framework_goes_on_with_one_process_where_two_were(
    one: Pool, two: Pool, tmp_path: Path, framework: str
) -> None:
    at = random.Random(framework).randrange(1, STEPS)
    named: dict[str, Any] = {"kind": "balanced", "folder": str(tmp_path), "save": at}
    found = two.run(f"{CASES}:trained", framework=framework, **named)
    alone = one.run(f"{CASES}:trained", framework=framework, resume=True, **named)
    expected = {step: samples for step, samples in joined(found).items() if step >= at}
    assert joined(alone) == expected
    assert_close(alone[0][1], found[0][1])
