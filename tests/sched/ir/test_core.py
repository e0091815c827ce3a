"""Passes, kinds, programs, registry: the text forms round-trip, the sizes add up."""

import pytest
from hypothesis import given, strategies as st

from counterpoise.sched import (
    Barrier,
    Kind,
    Pass,
    Program,
    format_pass,
    format_program,
    kind,
    kinds,
    lower,
    parse_pass,
    parse_program,
    place,
    register,
    register_kind,
    schedule,
    schedules,
)
from counterpoise.sched.ir.program import parse_barrier

KIND_NAMES = st.sampled_from([k.name for k in kinds()])
PASSES = st.builds(Pass, st.integers(0, 999), KIND_NAMES, st.integers(-1, 9999))


@given(PASSES)
def test_a_pass_reads_as_it_was_written(item: Pass) -> None:
    assert parse_pass(format_pass(item)) == item


@pytest.mark.parametrize("text", ["", "F0", "2", "2f0", "-1F0", "2F-1", "2F0 ", "2F0F1"])
def test_what_is_not_a_pass_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pass"):
        parse_pass(text)


@given(st.lists(st.lists(PASSES, max_size=5), min_size=1, max_size=12), st.integers(1, 99))
def test_any_program_reads_as_it_was_written(rows: list[list[Pass]], microbatches: int) -> None:
    barriers = (Barrier("CS", "S", "every", (("every", "T"), ("last", "B")), True, "X"),)
    placement = place(len(rows), 2, "v")
    program = Program(tuple(map(tuple, rows)), placement, microbatches, barriers, "some name")
    assert parse_program(format_program(program)) == program


@pytest.mark.parametrize("name", [s.name for s in schedules()])
def test_lowered_schedules_read_as_they_were_written(name: str) -> None:
    program = lower(schedule(name, ranks=3, microbatches=6))
    assert parse_program(str(program)) == program


def test_a_wrong_line_is_named() -> None:
    text = "placement: 0\nmicrobatches: 1\n0: 0F0 huh"
    with pytest.raises(ValueError, match=r"^line 3: 'huh' is not a pass"):
        parse_program(text)


@pytest.mark.parametrize("text", ["", "CS", "CS = every S", "cs = every S -> every T"])
def test_what_is_not_a_barrier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a barrier"):
        parse_barrier(text)


def test_chunks_follow_from_the_placement() -> None:
    v = schedule("zbv", ranks=3, microbatches=6)
    assert [v.stages_of(r) for r in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [v.chunk(stage) for stage in range(6)] == [0, 0, 0, 1, 1, 1]


def test_every_need_and_barrier_names_a_registered_kind() -> None:
    names = {k.name for k in kinds()}
    assert {n for k in kinds() for need in k.needs for n in need.kinds} <= names
    for found in schedules():
        program = schedule(found.name, ranks=2, microbatches=4)
        own = {b.name for b in program.barriers}
        assert {b.after for b in program.barriers} <= names | own
        assert {n for b in program.barriers for _, n in b.before} <= names


def test_every_buffer_that_is_taken_is_freed() -> None:
    taken = {buffer for k in kinds() for buffer in (*k.takes, *k.leaves)}
    assert taken == {buffer for k in kinds() for buffer in k.frees}


def test_a_kind_of_ones_own_can_be_registered_once() -> None:
    mine = Kind("XTEST", "a kind of this test")
    assert register_kind(mine) == register_kind(mine) == kind("XTEST")
    with pytest.raises(ValueError, match="registered already"):
        register_kind(Kind("XTEST", "another one"))
    with pytest.raises(ValueError, match="use capitals"):
        register_kind(Kind("x1", "cannot be parsed"))


def test_a_schedule_name_is_taken_once() -> None:
    def another(*, ranks: int, microbatches: int) -> Program:
        return Program(((),) * ranks, place(ranks), microbatches)

    def careless() -> Program:
        return Program((), (), 1)

    with pytest.raises(ValueError, match="registered already"):
        register("1f1b", "another one")(another)
    with pytest.raises(ValueError, match="must take microbatches and ranks"):
        register("nothing", "takes nothing")(careless)
