"""Plans are the same compiled and as plain Python, which says that it is slow, and has an end."""

import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from counterpoise.balancer.planning.kernels import loops
from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.sched.bubble_filling import kernels as walks

# Runs the rest of the command line as a program in which nothing is compiled.
AS_PYTHON = """
import sys
for folder in ("balancer.planning", "sched.bubble_filling"):
    sys.modules[f"counterpoise.{folder}.kernels.compiled"] = None
"""
PLANS = """
import sys
from tests.balancer.planning.random_plans import digest_of
print(*(digest_of(seed) for seed in range(int(sys.argv[1]), int(sys.argv[2]))))
"""
LARGE = """
import numpy as np
from counterpoise.balancer import PlanConfig, Window, make_planner
config = PlanConfig(2, 100_000, 4, ("tiles", "tokens"), (None, None))
for samples in (16, 16, 100_000):
    costs = np.ones((samples, 2), dtype=np.int64)
    try:
        make_planner(config).plan(Window(0, 0, 0, costs, True))
    except ValueError as error:
        print(error)
"""


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )


@pytest.mark.parametrize("kernels", [loops, walks], ids=lambda each: each.__name__)
def test_kernels_are_compiled_from_the_sources_that_are_here(kernels) -> None:
    assert kernels.IS_COMPILED, "kernels are not compiled; run make kernels"
    whole = Path(kernels.__file__).with_name("compiled.pyx")
    included = re.findall(r'^include "(.+)"', whole.read_text(), re.MULTILINE)
    sources = [whole, *map(whole.with_name, included)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    assert kernels.compiled.sources == digest, "a source has changed since; run make kernels"


@pytest.mark.parametrize(
    ("first", "last"), [(0, 88), pytest.param(88, 2000, marks=pytest.mark.long)]
)
def test_plans_are_the_same_compiled_and_as_python(first: int, last: int) -> None:
    compiled, plain = (run(text, first, last) for text in (PLANS, AS_PYTHON + PLANS))
    assert compiled.stdout == plain.stdout
    assert len(set(plain.stdout.split())) > 0.9 * (last - first)
    assert compiled.stderr == ""


@pytest.mark.parametrize("form", ["", AS_PYTHON], ids=["compiled", "as Python"])
def test_who_plans_imports_no_compiler(form: str) -> None:
    plan = PLANS + "print({'cython', 'Cython', 'numba', 'llvmlite'} & {*sys.modules})"
    assert run(form + plan, 0, 1).stdout.splitlines()[-1] == "set()"


def test_plain_python_says_once_that_it_is_slow_and_refuses_what_takes_minutes() -> None:
    done = run(AS_PYTHON + LARGE)
    (said,) = done.stderr.splitlines()
    assert said.startswith("counterpoise: the planning kernels are not compiled")
    assert "install a C compiler" in said
    (refused,) = done.stdout.splitlines()
    assert refused.startswith("planning 100,000 samples at once would take about 50 s, at most 30")
    assert "install a C compiler" in refused


def test_others_run_while_a_kernel_does() -> None:
    costs = np.random.default_rng(0).integers(1, 99, (8, 64))
    pipeline = PipelineEvaluator.one_forward_one_backward(8, costs)
    started, spans = threading.Event(), list[float]()

    def search() -> None:
        spans.append(time.perf_counter())
        started.set()
        pipeline.two_opt(np.arange(64), 40_000)
        spans.append(time.perf_counter())

    thread = threading.Thread(target=search)
    thread.start()
    started.wait()
    here = time.perf_counter()
    thread.join()
    begin, end = spans
    assert here - begin < (end - begin) / 2
