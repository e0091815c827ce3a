"""`bench runtime --order`: what is run is what a loader's plan orders, and what is simulated."""

from pathlib import Path

import numpy as np

from benchmarks.runtime.ordered import MICROBATCHES, RANKS, draw_cases


def test_steps_are_planned_by_the_file_s_costs(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    tiles = draw.integers(0, 12, 400)
    np.savez(tmp_path / "costs.npz", tiles=tiles, tokens=draw.integers(50, 400, 400) + 200 * tiles)
    cases = draw_cases(tmp_path / "costs.npz", 3)
    assert len(cases) == 3
    for case in cases:
        assert sorted(case.order) == list(range(MICROBATCHES))
        assert [len(row) for row in case.forward_ns] == [MICROBATCHES] * RANKS
        assert case.ordered_ns < case.given_ns
