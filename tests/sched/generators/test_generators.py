"""Every generator: sound, as its docstring draws it, with the memory and bubbles it promises."""

import importlib
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from counterpoise.sched import (
    Program,
    Schedule,
    check,
    lower,
    problems,
    schedule,
    schedules,
    simulate,
    unit_costs,
)
from counterpoise.sched.generators.blocks import Pace, block_1f1b, block_interleaved, repeat

NAMES = [s.name for s in schedules()]


@pytest.mark.parametrize("microbatches", [4, 8, 16])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_sound_and_stays_so_when_lowered(
    name: str, ranks: int, microbatches: int
) -> None:
    if name == "dualpipev" and microbatches < 2 * ranks:
        pytest.skip("it refuses fewer microbatches than stages")
    program = schedule(name, ranks=ranks, microbatches=microbatches)
    check(program)
    check(lower(program))


@given(st.sampled_from(schedules()), st.integers(1, 12), st.integers(1, 30), st.data())
def test_whatever_a_schedule_does_not_refuse_is_sound(
    found: Schedule, ranks: int, microbatches: int, data: st.DataObject
) -> None:
    values = {
        "inputs": st.booleans(),
        "chunks": st.integers(1, 4),
        "warmup": st.sampled_from(("megatron", "reduced")),
        "extra_warmup": st.integers(0, 3),
    }
    options: dict[str, Any] = {
        name: data.draw(values[name]) for name in found.options if name in values
    }
    try:
        program = schedule(found.name, ranks=ranks, microbatches=microbatches, **options)
    except ValueError:
        assert found.name.startswith(("interleaved", "dualpipev"))
        return
    assert problems(program) == ()
    assert problems(lower(program)) == ()


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "backward"),
    [
        ("1f1b", 4, 6, 2), ("gpipe", 4, 4, 2), ("interleaved", 2, 4, 1), ("zb-h1", 4, 6, 2),
        ("zbv", 2, 3, 2), ("dualpipev", 2, 4, 2),
    ],
)  # fmt: skip
def test_the_docstring_draws_what_is_simulated(
    name: str, ranks: int, microbatches: int, backward: int
) -> None:
    module = {"zb-h1": "zb", "1f1b": "one_f_one_b"}.get(name, name)
    text = importlib.import_module(f"counterpoise.sched.generators.{module}").__doc__ or ""
    drawn = re.findall(r"^    (\d): (.*)$", text, re.MULTILINE)
    program = schedule(name, ranks=ranks, microbatches=microbatches)
    for (rank, cells), row in zip(drawn, staircase(program, backward), strict=True):
        words = cells.split()
        if words[-1] == "..." and len(row) > len(words):  # the drawing leaves out the end
            words, row = words[:-1], row[: len(words) - 1]
        assert ["" if set(word) == {"."} else word for word in words] == row, rank


def staircase(program: Program, backward: int) -> list[list[str]]:
    """What every rank does in each nanosecond, stages left out where a rank has only one."""
    timeline = simulate(program, unit_costs(1, backward))
    single = program.stages == len(program.ranks)
    rows = []
    for slots in timeline.ranks:
        cells = [""] * timeline.makespan_ns
        for what, start, end in slots:
            text = str(what)[len(str(what.stage)) if single else 0 :]
            cells[start:end] = [text] * (end - start)
        rows.append(cells)
    return rows


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_1f1b_takes_the_time_of_the_formula(ranks: int) -> None:
    timeline = simulate(schedule("1f1b", ranks=ranks, microbatches=32), unit_costs(10, 20))
    assert timeline.makespan_ns == 30 * (32 + ranks - 1)
    assert timeline.peak_bytes == tuple(range(ranks, 0, -1))


@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("warmup", ["megatron", "reduced"])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks: int, warmup: str) -> None:
    program = schedule("interleaved", ranks=4, microbatches=16, chunks=chunks, warmup=warmup)
    timeline = simulate(program, unit_costs(10, 20))
    assert timeline.makespan_ns == 30 * (16 * chunks + 3)


def test_the_reduced_warmup_holds_fewer_activations_and_starts_microbatches_later() -> None:
    long, short = (
        simulate(
            schedule("interleaved", ranks=4, microbatches=8, chunks=2, warmup=warmup),
            unit_costs(10, 20),
        )
        for warmup in ("megatron", "reduced")
    )
    assert (max(long.peak_bytes), max(short.peak_bytes)) == (11, 8)
    entered = [
        [slot.start_ns for slot in timeline.ranks[0] if slot.what.kind == "F"]
        for timeline in (long, short)
    ]
    assert all(late >= early for early, late in zip(*entered, strict=True))
    assert entered[1] != entered[0]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_zb_h1_has_a_third_of_the_bubble_and_the_memory_of_1f1b(ranks: int) -> None:
    timeline = simulate(schedule("zb-h1", ranks=ranks, microbatches=24), unit_costs(10, 20))
    assert timeline.makespan_ns == 30 * 24 + 10 * (ranks - 1)
    assert max(timeline.peak_bytes) == ranks


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_zb_h2_is_idle_only_before_and_after(ranks: int) -> None:
    timeline = simulate(schedule("zb-h2", ranks=ranks, microbatches=24), unit_costs(10, 20))
    for row in timeline.ranks:
        assert row[-1].end_ns - row[0].start_ns == 30 * 24
    assert max(timeline.peak_bytes) == 2 * ranks - 1


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zbv_has_the_memory_of_1f1b_on_every_rank(ranks: int) -> None:
    timeline = simulate(schedule("zbv", ranks=ranks, microbatches=24), unit_costs(10, 20))
    assert set(timeline.peak_bytes) == {2 * ranks}
    assert timeline.makespan_ns < 1.01 * (60 * 24 + 10 * (ranks - 1))


def test_extra_warmup_costs_a_microbatch_each() -> None:
    for extra in (0, 1, 3):
        program = schedule("1f1b", ranks=4, microbatches=16, extra_warmup=extra)
        check(program, limit=4 + extra)
        assert max(simulate(program, unit_costs()).peak_bytes) == 4 + extra


def test_blocks_repeat_to_the_schedules_they_are() -> None:
    for ranks in (1, 2, 4, 5):
        size = {"ranks": ranks, "microbatches": 4 * ranks}
        made = repeat(block_1f1b(pace=Pace(), **size))
        assert made.ranks == schedule("1f1b", **size).ranks
        for warmup in ("megatron", "reduced"):
            made = repeat(block_interleaved(pace=Pace(), chunks=3, warmup=warmup, **size))
            assert made == schedule("interleaved", chunks=3, warmup=warmup, **size)
