"""Ordering's fast evaluator and the simulator are the same clock, to the nanosecond.

The balancer's evaluator knows nothing of `sched` and the other way round; here they meet.
"""

import random

import numpy as np
import pytest

from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.sched import Costs, schedule, simulate


def random_case(rng: random.Random) -> tuple[int, int, int]:
    """Ranks, chunks, microbatches; several chunks need whole rounds of microbatches."""
    ranks, chunks = rng.randrange(1, 7), rng.choice((1, 1, 2, 3))
    count = rng.randrange(1, 13) if chunks == 1 else ranks * rng.randrange(1, 4)
    return ranks, chunks, count


@pytest.mark.parametrize("seed", range(10))
def test_100_random_cases_take_the_same_time_in_both(seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    for _ in range(100):
        ranks, chunks, count = random_case(rng)
        forward = numbers.integers(0, 10**9, (ranks * chunks, count))
        backward = numbers.integers(0, 10**9, (ranks * chunks, count))
        order = numbers.permutation(count)
        fast = PipelineEvaluator.one_forward_one_backward(ranks, forward, backward)(order)
        name, options = ("1f1b", {}) if chunks == 1 else ("interleaved", {"chunks": chunks})
        program = schedule(name, ranks=ranks, microbatches=count, **options)
        costs = Costs({"F": forward[:, order], "B": backward[:, order]})
        assert simulate(program, costs).makespan_ns == fast
