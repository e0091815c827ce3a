"""Small windows are planned without numba, as they would be with it; kernels are loaded beside."""

import functools
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer import Balance, PlanConfig, Window, make_planner
from counterpoise.balancer.planning.first_plans import (
    LARGE_ARRAY,
    MOST_ELEMENTS,
    MOST_PADDED,
    WORTH_LOADING_S,
    FirstPlans,
    interpreter_of,
)
from counterpoise.balancer.planning.kernels.jit import PlanningKernel, interpreted_by

RESOURCES = ("tiles", "tokens", "frames")
EVERY = (
    {"grouping": "fixed"},
    {"grouping": "device"},
    {"grouping": "balanced"},
    {"grouping": "balanced", "counts": "equal"},
    {"grouping": "balanced", "time_ns": {"tokens": 3, "attention_pairs": 1}},
    {"grouping": "balanced", "mode": "window"},
    {"grouping": "balanced", "mode": "epoch"},
    {"grouping": "balanced", "partition": "karmarkar_karp"},
    {"grouping": "balanced", "work": "padded"},
    {"grouping": "balanced", "work": "padded", "counts": "free"},
    {"grouping": "isf", "mode": "window"},
)


def random_case(seed: int) -> tuple[PlanConfig, Window]:
    """A plan of some 10 to 40 samples with every option drawn, and a window for it."""
    draw = np.random.default_rng(seed)
    options: dict[str, Any] = dict(EVERY[seed % len(EVERY)])
    ranks, accumulate = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    size = int(draw.integers(1, 4))
    resources = RESOURCES[: draw.integers(2, 4)]
    costs = draw.integers(0, 10 ** draw.integers(1, 11, len(resources)), (40, len(resources)))
    counted = options["grouping"] in ("fixed", "device")
    needs_budgets = options["grouping"] == "isf" or options.get("mode") in ("window", "epoch")
    if not counted and (needs_budgets or draw.integers(2)):
        some = resources if needs_budgets else resources[: draw.integers(1, 3)]
        most = costs.max(axis=0) * draw.integers(1, 8) + draw.integers(2)
        options["budgets"] = {name: int(most[k]) for k, name in enumerate(some)}
    if options.get("partition") is None:
        options["waits"] = ("microbatch", "step")[draw.integers(2)]
    balance = Balance(
        seed=int(draw.integers(2**40)),
        accumulate=accumulate if counted else "auto",
        oversize="refuse" if "counts" in options else ("alone", "refuse")[draw.integers(2)],
        **options,
    )
    config = PlanConfig.from_balance(
        balance,
        ranks=ranks,
        resources=resources,
        samples_per_step=ranks * accumulate * size if counted else int(draw.integers(10, 40)),
        batch_size=size if counted else None,
        accumulate_from=accumulate,
    )
    most_samples = min(40, make_planner(config).window_samples)
    return config, Window(1, 2, 8, costs[:most_samples], last=True)


def interpret(ran: Counter[str], kernel: PlanningKernel, arguments: tuple[Any, ...]) -> Any:
    """Run a kernel by the interpreter, and count its name."""
    ran[kernel.__name__] += 1
    return FirstPlans(lambda: None, lambda: 0.0)(kernel, arguments)


@pytest.mark.parametrize("seeds", [range(44), pytest.param(range(44, 600), marks=pytest.mark.long)])
def test_plans_are_the_same_without_compiled_loops(seeds: range) -> None:
    ran: Counter[str] = Counter()
    for seed in seeds:
        config, window = random_case(seed)
        expected = make_planner(config).plan(window)
        with interpreted_by(functools.partial(interpret, ran)):
            found = make_planner(config).plan(window)
        assert (found.consumed, found.oversize) == (expected.consumed, expected.oversize)
        assert repr(tuple(found.batches)) == repr(tuple(expected.batches)), config
        assert len(expected.batches) or not len(window.costs)
    assert {"place", "two_ended", "level_steps", "assign_rows", "sample_and_filter"} <= ran.keys()
    assert {"best_tops", "cut_in_two", "stops", "even_out", "fill_empty"} <= ran.keys()


def test_a_small_window_is_planned_without_numba() -> None:
    code = """
import sys
from counterpoise.balancer import make_planner
from counterpoise.balancer.planning.first_plans import FirstPlans
from counterpoise.balancer.planning.kernels.jit import interpreted_by
from tests.balancer.planning.test_first_plans import random_case
sys.modules["numba"] = None
config, window = random_case(2)
with interpreted_by(FirstPlans(lambda: 1 / 0, lambda: 0.0)):
    print(config.grouping, len(make_planner(config).plan(window).batches))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_with_path()
    )
    assert done.stdout == "balanced 1\n", done.stderr


def _with_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class Forms:
    """A kernel whose forms write down that they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.kernel = PlanningKernel(lambda *_: self.ran.append("interpreted"), "never")
        self.kernel.compiled = lambda *_: self.ran.append("compiled")


def test_compiled_loops_are_loaded_once_when_interpreted_ones_have_cost_enough() -> None:
    loads, forms, now = [0], Forms(), iter(np.arange(0, 99) * WORTH_LOADING_S * 0.4)
    first = FirstPlans(lambda: loads.append(1), lambda: next(now))
    for _ in range(2):
        first(forms.kernel, (np.arange(3),))
    first.wait()
    assert loads == [0]
    first(forms.kernel, (np.arange(3),))
    first.wait()
    first(forms.kernel, (np.arange(3),))
    assert loads == [0, 1]
    assert forms.ran == ["interpreted"] * 3 + ["compiled"]


def test_large_arrays_wait_for_compiled_loops() -> None:
    forms = Forms()
    first = FirstPlans(lambda: None, lambda: 0.0)
    first(forms.kernel, (np.arange(LARGE_ARRAY), 3))
    first(forms.kernel, (3, np.arange(LARGE_ARRAY + 1)))
    first(forms.kernel, ((np.arange(2), np.arange(LARGE_ARRAY + 1)), 3))
    assert forms.ran == ["interpreted", "compiled", "compiled"]


@pytest.mark.parametrize(
    ("size", "balance", "form"),
    [
        (MOST_ELEMENTS // 2, Balance(), "interpreted"),
        (MOST_ELEMENTS // 2 + 1, Balance(), "compiled"),
        (MOST_PADDED // 2, Balance(work="padded"), "interpreted"),
        (MOST_PADDED // 2 + 1, Balance(work="padded"), "compiled"),
        (8, Balance(mode="epoch", budgets={"tiles": 9}), "compiled"),
    ],
)
def test_kernels_are_loaded_before_anybody_waits_if_windows_are_large(
    size: int, balance: Balance, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, forms = [], Forms()
    monkeypatch.setattr(
        "counterpoise.balancer.planning.first_plans.prepare_planning", loaded.append
    )
    config = PlanConfig.from_balance(
        balance, ranks=1, resources=("tiles", "tokens"), samples_per_step=size
    )
    interpreter_of(config, lambda: 0.0)(forms.kernel, (np.arange(3),))
    assert forms.ran == [form]
    assert loaded == [config] * (form == "compiled")
