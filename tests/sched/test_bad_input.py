"""Whatever is wrong with the input: one clear line that says what to give instead."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.baselines.vocabulary_placements import ModelTimes, arrange
from counterpoise.sched import Costs, Pass, Program, place, schedule, simulate
from counterpoise.sched.generators.blocks import Pace
from counterpoise.sched.generators.vocabulary import vocabulary

TIMES = ModelTimes(30, 1, 2, 3, 6)
F1B1 = schedule("1f1b", ranks=2, microbatches=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: schedule("1f1b", ranks=4, microbatches=0),
            "1f1b got 4 ranks and 0 microbatches; give at least one of each",
        ),
        (lambda: schedule("1f1b", ranks=0, microbatches=4), "1f1b got 0 ranks"),
        (
            lambda: schedule("interleaved", ranks=4, microbatches=6, chunks=0),
            "got 4 ranks and 0 chunks; give at least one of each",
        ),
        (
            lambda: schedule("interleaved", ranks=4, microbatches=9),
            "needs microbatches in rounds of 4 ranks, got 9; use 8 or 12",
        ),
        (
            lambda: schedule("interleaved", ranks=4, microbatches=8, warmup="long"),
            "unknown warmup 'long'; give 'megatron' or 'reduced'",
        ),
        (
            lambda: schedule("dualpipev", ranks=4, microbatches=7),
            "dualpipev needs at least as many microbatches as its 8 stages, got 7; use 8 or more",
        ),
        (lambda: schedule("2f2b", ranks=4, microbatches=8), "unknown schedule '2f2b'; known are"),
        (
            lambda: schedule("gpipe", ranks=4, microbatches=8, chunks=2),
            "gpipe has no option 'chunks'; its options: none",
        ),
        (
            lambda: schedule("1f1b", ranks=4, microbatches=8, extra_warmup=-1),
            "extra_warmup is -1; give 0 or more forwards",
        ),
        (lambda: place(4, 3, "v"), "the V form has 2 chunks a rank, got 3; use the loop form"),
        (
            lambda: vocabulary("gpipe", "alg1", ranks=2, microbatches=2),
            "'gpipe' is not built from blocks; those are 1f1b, interleaved, v-half",
        ),
        (
            lambda: vocabulary("1f1b", "alg3", ranks=2, microbatches=2),
            "unknown form 'alg3' of the output layer; give naive, alg1, alg2",
        ),
        (lambda: Pace(0, 1), "give a forward and a backward of 1 or more"),
        (
            lambda: arrange("alg1", TIMES, ranks=4, microbatches=4),
            "30 layers do not divide by 4 ranks; use redis",
        ),
        (lambda: arrange("best", TIMES, ranks=4, microbatches=4), "unknown method 'best'"),
        (lambda: simulate(F1B1, Costs({"F": 1})), "no times for kind 'B', .* times: F"),
        (lambda: simulate(F1B1, Costs({"F": 1, "B": -2})), "times of B: got -2"),
        (lambda: simulate(F1B1, Costs({"F": 1, "B": float("nan")})), "times of B: got nan"),  # type: ignore[dict-item]
        (lambda: simulate(F1B1, Costs({"F": 1, "B": 2.5})), "times of B: got 2.5"),  # type: ignore[dict-item]
        (lambda: simulate(F1B1, Costs({"F": True, "B": 2})), "times of F: got True"),
        (
            lambda: simulate(F1B1, Costs({"F": [1, 2, 3], "B": 2})),
            r"times of F: got a table of 3x1 \(stages x microbatches\); give 2x1 or 2x4",
        ),
        (lambda: simulate(F1B1, Costs({"F": [[1], [1, 2]], "B": 2})), "its rows differ in length"),
        (lambda: simulate(F1B1, Costs({"F": np.ones((2, 2, 2), int), "B": 2})), "got 3 dimensions"),
        (
            lambda: simulate(F1B1, Costs({"F": 1, "B": 2}, parameter_bytes=[[1, 2]] * 2)),
            "parameter_bytes: got a table of 2x2",
        ),
        (lambda: simulate(F1B1, Costs({"F": 1, "B": 2}, p2p_ns=-1)), "p2p_ns: got -1"),
        (
            lambda: simulate(F1B1, Costs({"F": 1, "B": 2}, buffer_bytes={"activation": -1})),
            "bytes of activation: got -1",
        ),
        (
            lambda: simulate(F1B1, Costs({"F": 1, "B": 2}, parameter_bytes=[1, 2, 3])),
            "parameter_bytes: got a table of 3x1",
        ),
        (
            lambda: simulate(
                schedule("1f1b-alg1", ranks=2, microbatches=2),
                Costs({"F": 1, "B": 2, "S": 1, "T": 1}, collective_ns={"CS": -3}),
            ),
            "time of barrier CS: got -3",
        ),
        (
            lambda: simulate(Program(((Pass(3, "F", 0),),), (0,), 1), Costs({"F": 1})),
            r"3F0: there are 1 stages; run check\(program\)",
        ),
        (
            lambda: simulate(Program(((Pass(0, "F", 5),),), (0,), 1), Costs({"F": 1})),
            "a pass has microbatch 5, the program has 1; run check",
        ),
        (
            lambda: simulate(
                Program(((Pass(0, "B", 0), Pass(0, "F", 0)),), (0,), 1), Costs({"F": 1, "B": 1})
            ),
            r"deadlock: 2 passes wait for each other; run check\(program\) to see the cycle",
        ),
    ],
)
def test_one_clear_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
