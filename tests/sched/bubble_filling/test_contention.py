"""Contention: kernels beside the language model's take longer, in plan and validator."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterpoise.sched import Contention, CostFunction, CostProfile, dump_profile, load_profile
from counterpoise.sched.bubble_filling.choose import fitting
from counterpoise.sched.bubble_filling.gaps import (
    COMMUNICATING,
    COMPUTING,
    FREE,
    Gaps,
    Ints,
    Stretches,
)
from counterpoise.sched.bubble_filling.instance import FillProblem, StageKernels
from counterpoise.sched.bubble_filling.search import Effort, fill_bubbles
from counterpoise.sched.bubble_filling.setup import dump_setup, load_setup
from counterpoise.sched.simulation.costs import NOT_MEASURED
from counterpoise.tools.cli import main
from tests.sched.bubble_filling.test_by_hand import SETUP
from tests.sched.bubble_filling.validate import filled_problems

MEASURED = Contention(250, 100, "a GPU")
EXACT = Effort(tolerance_ns=1)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def one_kernel(
    kind: int, resource: int, slower: tuple[int, int], backward: bool = False
) -> FillProblem:
    """A step of 100 ns: 60 beside the language model, then it needs features; a kernel of 40."""
    stretches = Stretches(
        ints(0, 0, 60, 100), ints(0, 60, 100, 100), ints(FREE, kind, COMPUTING, FREE),
    )  # fmt: skip
    if backward:  # the same on a mirrored clock
        stretches = Stretches(
            ints(0, 0, 40, 100), ints(0, 40, 100, 100), ints(FREE, COMPUTING, kind, FREE),
        )  # fmt: skip
    kernel = StageKernels(ints(resource), ints(40).reshape(1, 1, 1), ints(0))
    # What is not looked at takes a nanosecond, before or after the step.
    little = StageKernels(ints(0), ints(1).reshape(1, 1, 1), ints(0))
    none = StageKernels(ints(), np.zeros((1, 1, 0), np.int64), ints())
    ahead, back = (little, kernel) if backward else (kernel, none)
    need, gradient = (0, 40) if backward else (60, 100)
    return FillProblem(
        Gaps((stretches,), ints(need), ints(gradient), 100), ((0,),), 1, ahead, back, hop_ns=0,
        nominal_ns=ints(41 if backward else 40), slower=slower,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "resource", "slower", "before"),
    [
        # 40 ns in 60 fit alone, with a half more exactly, and with more than that not at all.
        (COMMUNICATING, 0, (0, 0), 0),
        (COMMUNICATING, 0, (500, 0), 0),
        (COMMUNICATING, 0, (501, 0), 40),
        (COMPUTING, 1, (501, 0), 0),
        (COMPUTING, 1, (0, 501), 40),
        # In its own time nothing is beside a kernel.
        (FREE, 0, (501, 501), 0),
    ],
)
def test_a_kernel_fits_beside_another_as_worked_out_by_hand(
    kind: int, resource: int, slower: tuple[int, int], before: int
) -> None:
    forward = fill_bubbles(one_kernel(kind, resource, slower), EXACT)
    assert (forward.before_ns, forward.after_ns) == (before, 0)
    # Backwards the same on a mirrored clock.
    backward = fill_bubbles(one_kernel(kind, resource, slower, backward=True), EXACT)
    assert (backward.before_ns, backward.after_ns) == (1, before)


def test_a_schedule_that_was_made_without_contention_is_wrong_with_it() -> None:
    free = fill_bubbles(one_kernel(COMMUNICATING, 0, (0, 0)), EXACT)
    slower = replace(free, problem=replace(free.problem, slower=(501, 0)))
    assert [found.proof for found in filled_problems(slower)] == ["timed", "dependencies", "inside"]


def test_pieces_fit_bubbles_in_which_they_take_longer() -> None:
    plain, slower = fitting(SETUP), fitting(replace(SETUP, contention=MEASURED))
    for before, now in zip(plain, slower, strict=True):
        assert now.longest_ns < before.longest_ns


def test_profiles_hold_the_table() -> None:
    profile = CostProfile((0,), {"F": (CostFunction(7),)}, contention=MEASURED)
    assert load_profile(dump_profile(profile)) == profile
    assert load_profile('{"placement": [0], "passes": {}}').contention == NOT_MEASURED
    setup = replace(SETUP, contention=MEASURED)
    assert load_setup(dump_setup(setup)) == setup
    assert (str(NOT_MEASURED), str(MEASURED)) == (
        "not measured, 0 % assumed",
        "computation 25 %, collectives 10 % longer, measured on a GPU",
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('{"compute": -1, "measured_on": "a GPU"}', "compute is -1; give permille, 0 or more"),
        ('{"communication": 5}', "5 permille was measured nowhere: give the device"),
        ('{"compute": 0.5}', "contention.compute is 0.5"),
    ],
)
def test_tables_that_cannot_be_are_refused(table: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_profile(f'{{"placement": [0], "passes": {{}}, "contention": {table}}}')


def test_the_command_reads_it_from_a_cost_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.json").write_text(dump_setup(SETUP))
    costs = CostProfile((0,), {}, contention=MEASURED)
    (tmp_path / "costs.json").write_text(dump_profile(costs))
    words = ["schedule", "fill", "--profile", str(tmp_path / "job.json"), "--pp-enc", "2",
             "--tp-enc", "2", "--whole"]  # fmt: skip
    given = ["--contention", str(tmp_path / "costs.json")]

    def said(*more: str) -> str:
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        assert end.value.code == 0
        return capsys.readouterr().out

    assert "not measured, 0 % assumed" in said()
    found = json.loads(said(*given, "--json").splitlines()[-1])
    assert found["contention"] == {
        "compute": 250, "communication": 100, "measured_on": "a GPU"
    }  # fmt: skip
