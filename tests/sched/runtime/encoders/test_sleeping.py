"""What `bench encoder` runs: the executed order of passes is the planned one, without sleeping."""

from dataclasses import replace

from benchmarks.encoder.cases import CASES, EncoderCase
from benchmarks.encoder.ranks import EncoderRank
from tests.sched.runtime.pool import make_mesh


def run_case(rank: int, case: EncoderCase) -> dict[str, list[bool]]:
    found = EncoderRank(rank, make_mesh(4)["pp"]).measure(case, 2)
    return {name: [one.in_order for one in steps] for name, steps in found.items()}


def test_ranks_run_the_planned_passes_in_order(pool) -> None:
    # The plan is that of the times; the passes take none.
    quick = replace(CASES[-1], forward=0, backward=0, layer_forward=0, layer_backward=0)
    vars(quick)["planned"] = CASES[-1].planned
    for found in pool.run(run_case, quick):
        assert found == {"filled": [True, True], "first": [True, True], "alone": [True, True]}
