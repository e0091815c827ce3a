"""Compiled operations: everything read is there, everything ends, and peaks are the simulator's."""

from collections.abc import Iterator

import pytest

from counterpoise.sched import (
    Pass,
    Program,
    parse_program,
    schedule,
    schedules,
    simulate,
    unit_costs,
)
from counterpoise.sched.runtime.compiled import Op, compile_program, lowered
from counterpoise.sched.transforms.training import with_reductions


def all_programs():
    """Every registered schedule at 2 and 4 ranks, with input passes where it has the option."""
    for known in schedules():
        for ranks in (2, 4):
            for inputs in (False, True) if "inputs" in known.options else (None,):
                options = {} if inputs is None else {"inputs": inputs}
                program = schedule(known.name, ranks=ranks, microbatches=2 * ranks, **options)
                yield pytest.param(program, id=f"{known.name}-{ranks}-{inputs}")


@pytest.mark.parametrize("name", ["1f1b", "1f1b-alg2", "zbv"])
def test_a_program_of_one_rank_is_lowered_once(name) -> None:
    program = lowered(schedule(name, ranks=1, microbatches=2))
    assert lowered(program) == program
    assert_sound(compile_program(program, 0))


def lists_of(program: Program, wanted=None) -> list[tuple[Op, ...]]:
    return [compile_program(program, rank, wanted) for rank in range(len(program.ranks))]


def live_counts(ops: tuple[Op, ...], name: str) -> Iterator[int]:
    """Yield how many values of a name are held during each operation, as the simulator counts."""
    held = 0
    for op in ops:
        held += sum(value.name == name for value in op.writes)
        yield held
        held -= sum(value.name == name for value in op.frees)


def assert_sound(ops: tuple[Op, ...]) -> None:
    held = set()
    for op in ops:
        assert set(op.reads) <= held, f"{op} reads what is not held"
        held |= set(op.writes)
        assert set(op.frees) <= held, f"{op} frees what is not held"
        held -= set(op.frees)
    assert not held, f"never freed: {sorted(map(str, held))}"


@pytest.mark.parametrize("program", list(all_programs()))
def test_every_value_is_written_before_it_is_read_and_freed_once(program) -> None:
    for ops in lists_of(program):
        assert_sound(ops)


@pytest.mark.parametrize("program", list(all_programs()))
def test_peaks_of_live_microbatches_are_the_simulators(program) -> None:
    peaks = tuple(max(live_counts(ops, "activation")) for ops in lists_of(program))
    assert peaks == simulate(program, unit_costs(10, 20, 3)).peak_bytes


@pytest.mark.parametrize("trained", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "1f1b-alg1", "1f1b-alg2"])
def test_no_gradient_crosses_a_boundary_before_which_nothing_is_trained(name, trained) -> None:
    program = schedule(name, ranks=4, microbatches=8)
    wanted = tuple(stage > trained for stage in range(5))
    lists = lists_of(program, wanted)
    for ops in lists:
        assert_sound(ops)
    sends = {op.what.stage for ops in lists for op in ops if op.what.kind == "SEND_B"}
    assert sends == {stage for stage in range(1, 4) if wanted[stage]}


def test_only_the_head_is_trained_and_no_rank_enters_the_reduction() -> None:
    program = schedule("1f1b-alg2", ranks=2, microbatches=4)
    kinds = {op.what.kind for ops in lists_of(program, (False,) * 3) for op in ops}
    assert "CG" not in kinds
    assert {"CX", "CS", "T", "B"} <= kinds


def test_a_list_reads_as_it_is_documented() -> None:
    ops = compile_program(schedule("zb-h1", ranks=2, microbatches=1), 1)
    assert list(map(str, ops)) == [
        "1RECV_F0() -> 0F0",
        "1F0(0F0) -> 1activation0",
        "1I0(1activation0) -> 1weight0, 1B0",
        "1SEND_B0(1B0)",
        "1W0(1weight0)",
    ]


def test_edges_are_values_of_their_own_and_go_to_every_rank_that_reads_them() -> None:
    text = """
        placement: 0 1
        microbatches: 1
        edges: 1EF_B0->0F0 1EF_B0->1F0
        edges: 0B0->1EB_B0
        0: 0F0 0B0
        1: 1EF_A0 1EF_B0 1F0 1B0 1EB_B0 1EB_A0
    """
    program = parse_program("\n".join(line.strip() for line in text.strip().splitlines()))
    lists = lists_of(program)
    for ops in lists:
        assert_sound(ops)
    assert list(map(str, lists[0])) == [
        "1RECV_X_EF_B0() -> 1X_EF_B0",
        "0RECV_B0() -> 1B0",
        "0F0(1X_EF_B0) -> 0activation0, 0F0",
        "0SEND_F0(0F0)",
        "0B0(0activation0, 1B0) -> 0X_B0",
        "0SEND_X_B0(0X_B0)",
    ]
    assert list(map(str, lists[1])) == [
        "1EF_A0() -> 1encoder_A0, 1EF_A0",
        "1RECV_F0() -> 0F0",
        "1EF_B0(1EF_A0) -> 1encoder_B0, 1X_EF_B0",
        "1SEND_X_EF_B0(1X_EF_B0)",
        "1F0(0F0, 1X_EF_B0) -> 1activation0",
        "0RECV_X_B0() -> 0X_B0",
        "1B0(1activation0) -> 1B0",
        "1SEND_B0(1B0)",
        "1EB_B0(1encoder_B0, 0X_B0) -> 1EB_B0",
        "1EB_A0(1encoder_A0, 1EB_B0)",
    ]
    (send,) = (op for op in lists[1] if op.what.kind == "SEND_X_EF_B")
    (receive,) = (op for op in lists[1] if op.what.kind == "RECV_X_B")
    assert (send.targets, receive.source) == ((0,), 0)


def test_chunks_of_one_rank_hand_over_without_a_message() -> None:
    ops = compile_program(schedule("zbv", ranks=1, microbatches=1), 0)
    assert not any(op.targets or op.source is not None for op in ops)
    assert_sound(ops)


def test_reductions_come_right_after_the_stages_last_pass() -> None:
    program = with_reductions(schedule("zbv", ranks=2, microbatches=3))
    for row in program.ranks:
        for at, item in enumerate(row):
            if item.kind == "REDUCE_GRAD":
                assert row[at - 1].stage == item.stage
                assert not any(later.stage == item.stage for later in row[at + 1 :])
    assert sum(item.kind == "REDUCE_GRAD" for row in program.ranks for item in row) == 4


def test_reductions_of_a_program_are_kept() -> None:
    row = (Pass(0, "F", 0), Pass(0, "B", 0), Pass(0, "REDUCE_GRAD"))
    program = Program((row,), (0,), 1)
    assert with_reductions(program) == program
