"""When to plan again, with injected times: every rank decides the same, at the same step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from counterpoise.sched import (
    CostFunction,
    CostProfile,
    Costs,
    Program,
    Replan,
    encoder_times,
    profile_costs,
    schedule,
    simulate,
    with_encoders,
)
from counterpoise.sched.replanning.decision import (
    Decision,
    PlanState,
    dump_state,
    first_state,
    load_state,
    observe,
    settled,
    step_ns,
)
from counterpoise.sched.replanning.observation import Observation, expected_step, nearby, step_keys

RANKS, COUNT, LAYERS = 4, 8, 4
FORWARD, BACKWARD, LAYER = 80_000, 160_000, 20_000
TOKENS = 100
PASSES = {
    "F": (CostFunction(per_thousand={"tokens": 1000 * FORWARD // TOKENS}),),
    "B": (CostFunction(per_thousand={"tokens": 1000 * BACKWARD // TOKENS}),),
    **{f"EF_{letter}": (CostFunction(LAYER),) for letter in "ABCD"},
    **{f"EB_{letter}": (CostFunction(2 * LAYER),) for letter in "ABCD"},
}
PROFILE = CostProfile(tuple(range(RANKS)), PASSES)
EVEN = [{"tokens": TOKENS}] * COUNT


def plan(ranks: int, microbatches: int, costs: Costs) -> Program:
    base = schedule("1f1b", ranks=ranks, microbatches=microbatches)
    return with_encoders(base, costs, encoder_times(costs, [LAYERS]))


SETTINGS = Replan(plan, PROFILE)


@dataclass
class Job:
    """A job in which passes take what `times` says of a step."""

    slow: dict[int, float]  # from a step on, the first stage's time by its planned one
    held: Sequence[Sequence[dict[str, int]]] = (EVEN,)  # of each replica
    settings: Replan = SETTINGS
    program: Program = field(init=False)
    state: PlanState = field(init=False)
    step: int = 0
    switches: list[int] = field(default_factory=list)
    extra: float = 1.0  # of the step, by what the simulator says

    def __post_init__(self) -> None:
        self.program = plan(RANKS, COUNT, profile_costs(PROFILE, EVEN))
        self.state = first_state(self.settings, {COUNT: self.program})

    def times(self, held: Sequence[dict[str, int]]) -> Costs:
        factor = max((self.slow[at] for at in self.slow if at <= self.step), default=1.0)
        costs: dict[str, Any] = dict(profile_costs(PROFILE, held).pass_ns)
        for kind in "FB":
            first, *others = costs[kind]
            costs[kind] = [[round(factor * ns) for ns in first], *others]
        return Costs(costs)

    def run(self, steps: int) -> Decision | None:
        """Run steps, and take every plan that is worth it, as the pipeline does."""
        decision = None
        for _ in range(steps):
            keys = step_keys(self.program)
            rows = []
            for held in self.held:
                timeline = simulate(self.program, self.times(held))
                expected = expected_step(self.program, self.state.profile, held)
                rows += [
                    keys.row(rank, self.slower(slots), self.state.profile, held, expected)
                    for rank, slots in enumerate(timeline.ranks)
                ]
            seen = Observation.from_row(keys, [sum(column) for column in zip(*rows, strict=True)])
            self.state, found = observe(self.state, self.settings, seen)
            self.step += 1
            if found is not None:
                decision = found
                before = step_ns(self.program, found.costs)
                self.state = settled(self.state, found, before)
                assert self.settings.program is not None
                made = self.settings.program(RANKS, COUNT, found.costs)
                if self.settings.worth(before, step_ns(made, found.costs)):
                    self.program = made
                    self.switches.append(self.step)
        return decision

    def slower(self, slots):
        """Return a rank's passes with all starts later, as where ranks wait for messages."""
        zero = slots[0].start_ns
        return [
            slot._replace(
                start_ns=round(self.extra * (slot.start_ns - zero)),
                end_ns=round(self.extra * (slot.start_ns - zero)) + slot.end_ns - slot.start_ns,
            )
            for slot in slots
        ]


def test_as_long_as_steps_are_as_planned_nothing_changes() -> None:
    job = Job({})
    assert job.run(9) is None
    assert job.state == replace(first_state(SETTINGS, {COUNT: job.program}), steps=9)


@pytest.mark.parametrize("start", [20, 21, 22])
def test_a_slow_stage_changes_the_plan_once_within_ten_steps(start: int) -> None:
    job = Job({start: 1.5})
    old = job.program
    job.run(60)
    assert len(job.switches) == 1
    assert start < job.switches[0] <= start + 10
    # What there is to win is won: the planner that knows the new times does no better.
    now = job.times(EVEN)
    rows: dict[str, Any] = dict(now.pass_ns)
    first = {kind: [row[0] for row in table] for kind, table in rows.items()}
    best = plan(RANKS, COUNT, Costs(first))
    lost, least, found = (simulate(p, now).makespan_ns for p in (old, best, job.program))
    assert least < lost
    assert lost - found >= 0.8 * (lost - least)


def test_the_profile_has_the_new_times_and_keeps_what_they_depend_on() -> None:
    job = Job({0: 1.5})
    job.run(3)
    first, *others = job.state.profile.passes["F"]
    assert first.per_thousand == {"tokens": 1500 * FORWARD // TOKENS}
    assert {one.per_thousand["tokens"] for one in others} == {1000 * FORWARD // TOKENS}
    assert job.state.profile.passes["EF_A"][0].fixed == LAYER


def test_fuller_steps_are_no_drift() -> None:
    # Twice and thrice as long, as the profile says of what their microbatches hold.
    full = [{"tokens": (2 + at % 2) * TOKENS} for at in range(COUNT)]
    assert Job({}, held=[full]).run(9) is None


def test_what_the_simulator_leaves_out_is_found_once() -> None:
    job = Job({}, extra=1.3)
    assert job.run(3) is not None
    assert 1290 <= job.state.usual <= 1310
    assert job.run(30) is None
    assert job.switches == []


def test_one_slow_step_is_no_drift() -> None:
    job = Job({4: 3.0, 5: 1.0})
    job.slow = {4: 3.0}
    job.run(5)
    job.slow = {}
    assert job.run(10) is None


def test_replicas_count_together() -> None:
    job = Job({0: 1.5}, held=[EVEN, [{"tokens": 2 * TOKENS}] * COUNT])
    decision = job.run(3)
    assert decision is not None
    mean = 1.5 * 1.5 * FORWARD
    assert decision.costs.pass_ns["F"] == [mean, 1.5 * FORWARD, 1.5 * FORWARD, 1.5 * FORWARD]


def test_a_resumed_job_decides_the_same() -> None:
    whole, first = Job({20: 1.5}), Job({20: 1.5})
    whole.run(40)
    first.run(22)
    resumed = Job({20: 1.5}, step=22)
    resumed.state = load_state(dump_state(first.state))
    assert resumed.state == first.state
    resumed.run(18)
    assert (resumed.switches, resumed.program) == (whole.switches, whole.program)
    assert resumed.state == whole.state


def test_a_plan_that_saves_too_little_is_not_taken() -> None:
    job = Job({20: 1.5}, settings=replace(SETTINGS, gain=0.5))
    job.run(60)
    assert job.switches == []


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"gain": 1.0}, {"window": 0}])
def test_numbers_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give shares of the step"):
        replace(SETTINGS, **wrong)


def test_a_state_of_another_form_is_refused() -> None:
    text = dump_state(
        first_state(SETTINGS, {COUNT: plan(RANKS, COUNT, profile_costs(PROFILE, EVEN))})
    )
    with pytest.raises(ValueError, match="the plan's state: usual is"):
        load_state(text.replace('"usual":1000', '"usual":"much"'))


def test_measurements_that_are_off_by_a_per_cent_win_as_much() -> None:
    job = Job({0: 1.5})
    table: dict[str, Any] = dict(job.times(EVEN).pass_ns)
    true = {kind: [row[0] for row in rows] for kind, rows in table.items()}
    known = Costs(true)
    old, best = (step_ns(p, known) for p in (job.program, plan(RANKS, COUNT, known)))
    for seed in range(5):
        draw = random.Random(seed)
        longer = {k: [round(ns * draw.uniform(1, 1.03)) for ns in row] for k, row in true.items()}
        noisy = Costs(longer)
        plans = [plan(RANKS, COUNT, costs) for costs in nearby(noisy)]
        found = min(plans, key=lambda one: step_ns(one, noisy))
        assert old - step_ns(found, known) >= 0.8 * (old - best)
