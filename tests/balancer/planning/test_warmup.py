"""A plan that was compiled for compiles nothing more: no step waits for numba."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterpoise.balancer.planning import warmup
from counterpoise.balancer.planning.warmup import compile_for

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


KERNEL = "import numba\n\n@numba.njit(cache=True)\ndef twice(number):\n    return 2 * number\n"


def test_compiling_is_told_once_and_only_on_the_machines_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "kernel.py", list[str]()
    path.write_text(KERNEL)
    for _ in range(2):
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(warmup, "compile_kernels", _calling(module))
        compile_for("fixed", told.append)
        assert told == ["compiling the planning kernels, once on this machine (some seconds)"]


def _calling(module: Any) -> Callable[..., Any]:
    return lambda *_: (module.twice(2), module.twice(2.0))
