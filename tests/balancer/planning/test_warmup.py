"""A plan that was compiled for compiles nothing more: no step waits for numba."""

import subprocess
import sys

import pytest

# Each grouping in an interpreter of its own: what one compiles would hide what another lacks.
PLAN = """
import gc
import numpy as np
from numba.core.registry import CPUDispatcher
from counterpoise.balancer import Balance, PlanConfig, Window, make_planner
from counterpoise.balancer.planning.warmup import compile_for

def compiled():
    objects = (o for o in gc.get_objects() if isinstance(o, CPUDispatcher))
    return {kernel.__name__: len(kernel.signatures) for kernel in objects}

compile_for("GROUPING", print)
before = compiled()
fixed = "GROUPING" == "fixed"
budgets = {} if fixed else {"budgets": {"tiles": 50, "tokens": 500}}
config = PlanConfig.from_balance(
    Balance(grouping="GROUPING", **budgets), ranks=2, resources=("tiles", "tokens"),
    samples_per_step=16, batch_size=8 if fixed else None, drop_last=False, accumulate_from=1,
)
planner = make_planner(config)
costs = np.random.default_rng(0).integers(1, 9, (planner.window_samples, 2))
planner.plan(Window(0, 0, 0, costs, True))
print("new:", {name for name, count in compiled().items() if before.get(name, 0) != count})
"""


@pytest.mark.parametrize("grouping", ["fixed", "isf", "balanced"])
def test_planning_compiles_nothing_that_was_not_compiled_before(grouping: str) -> None:
    code = PLAN.replace("GROUPING", grouping)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["new: set()"], done.stderr
