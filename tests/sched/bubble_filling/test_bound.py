"""The bound on hidden encoder time, on problems whose answer can be told by hand."""

import numpy as np
import pytest

from counterpoise.sched.bubble_filling.bound import hidden_bound
from counterpoise.sched.bubble_filling.gaps import COMPUTING, FREE, Gaps, Ints, Stretches
from counterpoise.sched.bubble_filling.instance import FillProblem, Work, make_work
from counterpoise.sched.bubble_filling.setup import Kernel

MS = 10**6


def one_gpu(work: Work) -> FillProblem:
    """One GPU that is free in the first and last 2 of 22 ms, and wants one output after 20 ms."""

    def numbers(*values: int) -> Ints:
        return np.array(values, np.int64)

    at = numbers(0, 2 * MS, 20 * MS)
    end = numbers(2 * MS, 20 * MS, 22 * MS)
    rank = Stretches(at, end, numbers(FREE, COMPUTING, FREE))
    gaps = Gaps((rank,), numbers(20 * MS), numbers(20 * MS), 22 * MS)
    nothing = make_work(())
    nominal = np.asarray(work.per_microbatch_ns)
    return FillProblem(gaps, ((0,),), 1, work, nothing, 0, nominal)


def test_computation_cannot_hide_under_computation() -> None:
    problem = one_gpu(make_work((Kernel("a", "compute", 5 * MS),)))
    # 2 of 5 ms fit before the deadline; all stretches together would hold them.
    assert hidden_bound(problem) == pytest.approx(2 / 5, abs=0.01)


def test_communication_can() -> None:
    assert hidden_bound(one_gpu(make_work((Kernel("a", "communication", 5 * MS),)))) == 1
