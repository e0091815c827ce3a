"""Fitting: a profile that made the times comes back, and residuals say how far off one is."""

import random
from dataclasses import replace

import numpy as np
import pytest

from counterpoise.sched import (
    CostFunction,
    CostProfile,
    Pass,
    dump_profile,
    load_profile,
    profile_costs,
    schedule,
    simulate,
)
from counterpoise.sched.simulation.fitting import fit_function, fit_profile
from counterpoise.sched.simulation.measured import MeasuredStep
from counterpoise.sched.simulation.timeline import Slot

TRUE = CostProfile(
    (0, 1, 2),
    {
        "F": tuple(CostFunction(900 + s, {"tokens": 51200, "tiles": 70_000 * s}) for s in range(3)),
        "B": (CostFunction(1800, {"tokens": 102_400, "pairs": 12}),) * 3,
        "S": tuple(CostFunction(10 * r, {"tokens": 3000}) for r in range(3)),
        "T": (CostFunction(0, {"tokens": 3000}),) * 3,
    },
    collectives={"CS": 500, "CX": 40, "CG": 0},
)


def steps(count: int, noise: float = 0.0) -> list[MeasuredStep]:
    """Steps of different microbatches, their times as TRUE says, or off by up to this share."""
    rng = random.Random(7)
    program = schedule("1f1b-alg1", ranks=3, microbatches=8)
    made = []
    for _ in range(count):
        held = []
        for _ in range(8):
            tokens = rng.randrange(500, 5000)
            held.append({"tokens": tokens, "tiles": rng.randrange(40), "pairs": tokens**2 // 2})
        timeline = simulate(program, profile_costs(TRUE, held))
        if noise:
            rows = (
                tuple(slower(slot, 1 + noise * rng.random()) for slot in row)
                for row in timeline.ranks
            )
            timeline = replace(timeline, ranks=tuple(rows))
        made.append(MeasuredStep(timeline, tuple(held)))
    return made


def slower(slot: Slot, factor: float) -> Slot:
    return slot._replace(end_ns=slot.start_ns + round((slot.end_ns - slot.start_ns) * factor))


def close(found: CostFunction, true: CostFunction) -> bool:
    pairs = [(found.fixed, true.fixed)]
    names = set(found.per_thousand) | set(true.per_thousand)
    pairs += [(found.per_thousand.get(n, 0), true.per_thousand.get(n, 0)) for n in names]
    return all(abs(a - b) <= 3 + 1e-4 * b for a, b in pairs)


def test_the_profile_that_made_the_times_comes_back() -> None:
    fitted = fit_profile(steps(4))
    for name, rows in TRUE.passes.items():
        for found, true in zip(fitted.profile.passes[name], rows, strict=True):
            assert close(found, true), (name, found, true)
    assert fitted.profile.collectives == TRUE.collectives
    assert max(one.worst for rows in fitted.residuals.values() for one in rows) < 1e-3
    assert load_profile(dump_profile(fitted.profile)) == fitted.profile


def test_residuals_say_how_noisy_the_times_were() -> None:
    fitted = fit_profile(steps(6, noise=0.2))
    for rows in fitted.residuals.values():
        for one in rows:
            assert one.samples == 48
            assert 0.02 < one.rms < 0.12
            assert one.rms < one.worst < 0.6


def test_one_pause_of_the_machine_does_not_count_among_passes_alike() -> None:
    held = [{"tokens": 100}] * 9 + [{"tokens": 300}] * 9
    costs = [200] * 8 + [90_000] + [600] * 9
    found, residual = fit_function(held, costs)
    assert found == CostFunction(0, {"tokens": 2000})
    assert residual.worst > 10


def test_microbatches_alike_give_a_fixed_cost() -> None:
    assert fit_function([{"tokens": 100}] * 3, [70, 70, 70])[0] == CostFunction(70)


def test_terms_are_never_negative_and_the_best_of_those() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        tokens, tiles = rng.integers(1, 100, 12), rng.integers(1, 100, 12)
        costs = np.maximum(0, 500 + 30 * tokens - 20 * tiles)
        held = [{"tokens": int(a), "tiles": int(b)} for a, b in zip(tokens, tiles, strict=True)]
        found, residual = fit_function(held, costs.tolist())
        assert min(found.fixed, *found.per_thousand.values(), 0) == 0
        # No point of a grid around it does better.
        at = np.array(
            [found.fixed, *(found.per_thousand.get(n, 0) / 1000 for n in ("tokens", "tiles"))]
        )
        columns = np.column_stack([np.ones(12), tokens, tiles])
        for step in rng.normal(0, 1, (200, 3)) * np.array([5, 0.5, 0.5]):
            other = columns @ np.maximum(0, at + step)
            assert ((other - costs) ** 2).mean() >= (residual.rms * residual.mean) ** 2 * 0.999 - 1


def test_only_named_resources_are_used() -> None:
    fitted = fit_profile(steps(3), resources=["tokens"])
    used = {r for rows in fitted.profile.passes.values() for f in rows for r in f.per_thousand}
    assert used == {"tokens"}


def with_optimizer(step: MeasuredStep, ns: int) -> MeasuredStep:
    """The step with an optimizer pass of this time on every rank."""
    end = step.timeline.makespan_ns
    rows = (
        (*row, Slot(Pass(rank, "O"), end, end + ns)) for rank, row in enumerate(step.timeline.ranks)
    )
    return replace(step, timeline=replace(step.timeline, ranks=tuple(rows)))


def test_what_is_done_once_a_step_costs_its_median() -> None:
    made = [with_optimizer(step, ns) for step, ns in zip(steps(3), (100, 200, 900), strict=True)]
    assert fit_profile(made).profile.passes["O"] == (CostFunction(200),) * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: [s][:0], "no steps to fit"),
        (lambda s: [replace(s, microbatches=())], "does not say what its microbatches held"),
        (
            lambda s: [s, replace(s, timeline=replace(s.timeline, placement=(0, 1, 1)))],
            r"stages on ranks \(0, 1, 1\), the first step on \(0, 1, 2\)",
        ),
        (
            lambda s: [replace(s, timeline=replace(s.timeline, ranks=s.timeline.ranks[:2]))],
            "stage 2 has no B in these steps",
        ),
    ],
)
def test_steps_that_cannot_be_fitted_are_refused(change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_profile(change(steps(1)[0]))


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no measurements"):
        fit_function([], [])
    with pytest.raises(ValueError, match="no amount of 'frames'"):
        fit_function([{"tokens": 1}], [2], resources=["frames"])
    with pytest.raises(ValueError, match="have 7 resources"):
        fit_function([dict.fromkeys("abcdefg", 1)], [2])
