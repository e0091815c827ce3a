"""Measured steps: the simulator's timelines, their JSON, and how they agree."""

from dataclasses import replace

import pytest

from counterpoise.sched import (
    Costs,
    Pass,
    Slot,
    Timeline,
    lower,
    schedule,
    schedules,
    simulate,
    unit_costs,
)
from counterpoise.sched.render.text import render_text
from counterpoise.sched.simulation.measured import (
    MeasuredStep,
    agreement,
    dump_step,
    load_step,
    measured_timeline,
)


def simulated(name: str = "1f1b", forward: int = 10, microbatches: int = 4) -> Timeline:
    program = schedule(name, ranks=2, microbatches=microbatches)
    return simulate(lower(program), unit_costs(forward, 20, 3))


@pytest.mark.parametrize("name", [s.name for s in schedules()])
def test_a_simulated_timeline_reads_as_it_was_written(name: str) -> None:
    step = MeasuredStep(simulated(name), ({"tokens": 3},) * 4)
    assert load_step(dump_step(step)) == step


def test_what_was_measured_starts_at_zero_and_has_the_simulators_figures() -> None:
    planned = simulated()
    late = [
        [Slot(slot.what, slot.start_ns + 1000, slot.end_ns + 1000) for slot in row]
        for row in planned.ranks
    ]
    memory = [((1000, 5), (1010, 7))] * 2
    made = measured_timeline("step 3", planned.placement, late, memory=memory)
    assert made.ranks == planned.ranks
    assert made.makespan_ns == planned.makespan_ns
    assert made.bubbles == planned.bubbles
    assert made.memory == (((0, 5), (10, 7)),) * 2
    assert made.peak_bytes == (7, 7)


def test_idle_time_counts_once_also_where_nothing_says_why() -> None:
    rows = [
        [Slot(Pass(0, "F", 0), 0, 10), Slot(Pass(0, "B", 0), 40, 60)],
        [Slot(Pass(1, "F", 0), 15, 25), Slot(Pass(1, "B", 0), 25, 38)],
    ]
    made = measured_timeline("two", (0, 1), rows)
    assert [idle.total_ns for idle in made.bubbles] == [30, 37]
    assert made.work_ns == (30, 23)


def test_a_step_is_drawn_on_a_given_scale() -> None:
    short, long = simulated(), simulated(forward=20)
    lines = render_text(short, columns=80, span_ns=2 * long.makespan_ns).splitlines()
    widths = {len(line) for line in lines[2:]}
    wide = render_text(long, columns=80, span_ns=2 * long.makespan_ns).splitlines()
    assert max(widths) < len(wide[2]) < 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "has no field placement"),
        ('{"placement": [0], "ranks": [[["0F0", 5, 3]]]}', "0F0 of row 0 ends 3, before it starts"),
        (
            '{"placement": [0], "ranks": [[["0F0", 0, 5], ["0B0", 4, 9]]]}',
            "0B0 of row 0 starts at 4, before 0F0 ends at 5",
        ),
        ('{"placement": [0], "ranks": [[["F0", 0, 5]]]}', "'F0' is not a pass"),
        ('{"placement": [0], "ranks": [[["0F0", -1, 5]]]}', "expected int >= 0"),
        (
            '{"placement": [0], "ranks": [[["0F1", 0, 5]]], "microbatches": [{"tokens": 3}]}',
            "passes of microbatch 1, but resources of 1 microbatches",
        ),
        ('{"placement": [0], "ranks": [[]], "memory": [[], []]}', "1 ranks and memory of 2"),
    ],
)
def test_a_bad_file_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as caught:
        load_step(text)
    assert "\n" not in str(caught.value)


def test_agreement_compares_the_passes_of_each_kind() -> None:
    found = {one.kind: one for one in agreement(simulated(), simulated(forward=15))}
    assert set(found) == {"F", "B"}
    assert found["F"].passes == 8
    assert found["F"].ratio == 1.5
    assert found["B"].ratio == 1.0


def test_agreement_ignores_messages_which_programs_have_only_when_lowered() -> None:
    plain = simulate(schedule("1f1b", ranks=2, microbatches=4), unit_costs(10, 20))
    assert {one.ratio for one in agreement(plain, simulated())} == {1.0}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (simulated("zb-h1"), "0B0 is not in the measured one"),
        (simulated(microbatches=5), "0B4 is not in the simulated one"),
        (simulated("zbv"), "stages on ranks"),
    ],
)
def test_only_steps_of_the_same_passes_can_be_compared(other: Timeline, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agreement(simulated(), replace(other, name="other"))


def test_a_pass_that_takes_no_time_agrees() -> None:
    program = schedule("1f1b-alg1", ranks=2, microbatches=2)
    free = simulate(program, Costs({"F": 1, "B": 2, "S": 0, "T": 0}))
    assert {one.kind: one.ratio for one in agreement(free, free)}["S"] == 1.0
