"""The checker finds what it must, says so in one line, and marks it in the grid."""

from dataclasses import replace
from typing import Any

import pytest

from counterpoise.sched import (
    Pass,
    Program,
    check,
    lower,
    parse_pass,
    parse_program,
    place,
    problems,
    schedule,
)
from counterpoise.sched.ir.program import Edge


def edited(program: Program, rank: int, change: dict[str, str | None]) -> Program:
    """The program with passes of a rank replaced, or dropped for None."""
    row = [
        parse_pass(new)
        for item in program.ranks[rank]
        if (new := change.get(str(item), str(item))) is not None
    ]
    rows = [*program.ranks]
    rows[rank] = tuple(row)
    return replace(program, ranks=tuple(rows))


def exchanged(program: Program, rank: int, one: str, two: str) -> Program:
    """The program with two passes of a rank exchanged."""
    return edited(program, rank, {one: two, two: one})


def complaint(program: Program, **options: Any) -> str:
    with pytest.raises(ValueError, match=r"\n") as caught:
        check(program, **options)
    return str(caught.value)


def test_a_missing_pass() -> None:
    program = edited(schedule("1f1b", ranks=2, microbatches=4), 1, {"1B2": None})
    assert complaint(program).startswith("stage 1 has no B (or I and W) of microbatch 2")


def test_a_pass_that_is_there_twice_is_marked_twice() -> None:
    program = edited(schedule("1f1b", ranks=2, microbatches=4), 1, {"1B2": "1B1"})
    text = complaint(program)
    assert text.startswith("1B1 is there 2 times")
    assert text.count("[1B1]") == 2


def test_swapped_forward_and_backward() -> None:
    program = exchanged(schedule("1f1b", ranks=2, microbatches=4), 1, "1F0", "1B0")
    text = complaint(program)
    assert text.startswith("1B0 comes before 1F0, which it needs")
    assert "[1B0]" in text
    assert "[1F0]" in text


def test_weight_gradient_before_input_gradient() -> None:
    program = exchanged(schedule("zb-h1", ranks=2, microbatches=4), 0, "0I1", "0W1")
    assert complaint(program).startswith("0W1 comes before 0I1, which it needs")


def test_a_crossed_pair_of_collectives() -> None:
    lowered = lower(schedule("1f1b-alg1", ranks=3, microbatches=6))
    text = complaint(exchanged(lowered, 1, "1CX2", "1CX3"))
    assert text.startswith("communicator CX: rank 0 enters CX2 where rank 1 enters CX3")
    assert "[1CX3]" in text


def test_one_communicator_for_all_barriers_stops_algorithm_1() -> None:
    """The real deadlock: the last rank broadcasts at its F, the others come to it at their S."""
    own = lower(schedule("1f1b-alg1", ranks=4, microbatches=6))
    check(own)
    late = replace(
        own,
        ranks=(*(receiving_at_use(row) for row in own.ranks[:-1]), own.ranks[-1]),
        barriers=tuple(replace(b, communicator="ALL") for b in own.barriers),
    )
    assert complaint(late).startswith("communicator ALL: rank 0 enters C")


def receiving_at_use(row: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """The row with each broadcast entered right before the S that uses it."""
    out: list[Pass] = []
    for item in row:
        if item.kind == "S":
            out.append(Pass(item.stage, "CX", item.microbatch))
        if item.kind != "CX":
            out.append(item)
    return tuple(out)


def test_a_send_without_receive() -> None:
    lowered = lower(schedule("1f1b", ranks=2, microbatches=4))
    assert complaint(edited(lowered, 1, {"1RECV_F3": None})).startswith(
        "0SEND_F3 has no matching receive"
    )
    assert complaint(edited(lowered, 0, {"0SEND_F3": None})).startswith(
        "1RECV_F3 has no matching send"
    )
    # the other channel, behind one that is right
    assert complaint(edited(lowered, 0, {"0RECV_B3": None})).startswith(
        "1SEND_B3 has no matching receive"
    )


def test_a_list_that_is_backwards_throughout_is_told_in_some_examples() -> None:
    program = schedule("gpipe", ranks=1, microbatches=30)
    found = problems(replace(program, ranks=(program.ranks[0][::-1],)))
    assert {problem.proof for problem in found} == {"order"}
    assert len(found) == 20


def test_messages_that_pass_each_other_on_a_channel() -> None:
    lowered = lower(schedule("1f1b", ranks=2, microbatches=4))
    text = complaint(exchanged(lowered, 1, "1RECV_F1", "1RECV_F2"))
    assert text.startswith("0SEND_F1 meets 1RECV_F2 on the channel from rank 0 to rank 1\n")


def test_a_cycle_over_three_ranks() -> None:
    text = """
        placement: 0 1 2 0
        microbatches: 2
        0: 0F0 3F0 3B0 0F1 0B0 3F1 3B1 0B1
        1: 1F0 1F1 1B0 1B1
        2: 2F0 2F1 2B0 2B1
    """
    program = parse_program("\n".join(line.strip() for line in text.strip().splitlines()))
    check(program)
    stuck = exchanged(exchanged(program, 1, "1F1", "1F0"), 0, "3F0", "3F1")
    stuck = exchanged(stuck, 0, "3B0", "3B1")
    message = complaint(stuck)
    assert message.startswith("deadlock: each of these waits for the one before it: ")
    path = message.splitlines()[0].split(": ")[2].split(" -> ")
    assert {int(name[0]) % 3 for name in path} == {0, 1, 2}
    assert path[0] == path[-1]


def test_a_cycle_through_a_collective_marks_its_passes() -> None:
    program = schedule("1f1b-alg1", ranks=2, microbatches=2)
    early = edited(program, 0, {"0F0": "0S0", "0S0": "0F0"})
    message = complaint(early)
    assert message.startswith("deadlock: each of these waits for the one before it: ")
    assert "CX0" in message.splitlines()[0]
    assert "[0S0]" in message


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "v-half", "1f1b-alg1"])
def test_a_memory_limit_holds_exactly(name: str) -> None:
    program = schedule(name, ranks=4, microbatches=8)
    need = {"1f1b": 4, "interleaved": 11, "v-half": 6, "1f1b-alg1": 6}[name]
    check(program, limit=need)
    text = complaint(program, limit=need - 1)
    assert f"holds {need}, more than the limit {need - 1}" in text
    assert "[" in text


def test_the_pass_that_goes_over_the_limit_is_marked_on_each_rank() -> None:
    # ranks 0 to 3 hold 4, 3, 2 and 1; the third forward is the first too many
    found = problems(schedule("1f1b", ranks=4, microbatches=8), limit=2)
    assert [problem.culprits for problem in found] == [((0, 2),), ((1, 2),)]


def test_a_pass_that_leaves_too_much_is_marked_and_not_the_one_after_it() -> None:
    row = (Pass(0, "F", 0), Pass(0, "I", 0), Pass(0, "W", 0))
    sizes = {"activation": 1, "weight": 3}
    (problem,) = problems(Program((row,), (0,), 1), limit=2, buffer_bytes=sizes)
    assert problem.culprits == ((0, 1),)
    assert problem.message == "rank 0 holds 3, more than the limit 2"


def test_the_most_that_is_held_is_told() -> None:
    row = tuple(Pass(0, kind, m) for kind in "FB" for m in range(4))
    (problem,) = problems(Program((row,), (0,), 4), limit=2)
    assert problem.message == "rank 0 holds 4, more than the limit 2"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"1F0": "1QQ0"}, "1QQ0: unknown kind 'QQ'"),
        ({"1F0": "7F0"}, "7F0: there is no stage 7, only 2"),
        ({"1F0": "0F0"}, "0F0: it is on rank 1, but belongs on rank 0"),
        ({"1F0": "1F9"}, "1F9: microbatches go from 0 to 3"),
        ({"1F0": "1F"}, "1F: microbatches go from 0 to 3"),
    ],
)
def test_passes_that_refer_to_nothing(edit: dict[str, str | None], message: str) -> None:
    program = edited(schedule("1f1b", ranks=2, microbatches=4), 1, edit)
    assert complaint(program).startswith(message)


def test_a_program_that_only_goes_forward_is_sound() -> None:
    rows = tuple(tuple(Pass(r, "F", m) for m in range(4)) for r in range(2))
    assert problems(Program(rows, place(2), 4)) == ()


@pytest.mark.parametrize(
    ("ranks", "placement", "microbatches"), [((), (0,), 1), (((),), (), 1), (((),), (0,), 0)]
)
def test_an_empty_program_is_not(
    ranks: tuple[tuple[Pass, ...], ...], placement: tuple[int, ...], microbatches: int
) -> None:
    assert problems(Program(ranks, placement, microbatches))[0].proof == "empty"


def test_a_long_grid_is_cut_to_what_is_near() -> None:
    program = exchanged(schedule("1f1b", ranks=2, microbatches=400), 1, "1F200", "1B200")
    text = complaint(program)
    assert max(map(len, text.splitlines())) < 120
    assert "... " in text


def test_each_rank_enters_each_barrier() -> None:
    lowered = lower(schedule("1f1b-alg1", ranks=2, microbatches=2))
    assert not problems(lowered)
    found = problems(edited(lowered, 1, {"1CS1": None}))
    assert "stage 1 has no CS of microbatch 1" in [each.message for each in found]


def test_a_result_is_received_once_on_each_rank_that_uses_it() -> None:
    program = schedule("gpipe", ranks=3, microbatches=2)
    users = [(m, Pass(*user, m)) for m in (0, 1) for user in ((1, "B"), (2, "F"))]
    edges = tuple(Edge(Pass(0, "F", m), user) for m, user in users)
    lowered = lower(replace(program, edges=edges))
    assert not problems(lowered)
    for rank in (1, 2):
        twice = edited(lowered, rank, {"0RECV_X_F0": "0RECV_X_F1"})
        assert "0RECV_X_F1 is there" in str(problems(twice))


def test_a_backward_is_whole_or_in_two_parts() -> None:
    program = schedule("zb-h1", ranks=2, microbatches=2)
    both = replace(program, ranks=(program.ranks[0], (*program.ranks[1], Pass(1, "B", 1))))
    said = [each.message for each in problems(both) if each.proof == "completeness"]
    assert said == ["stage 1 has both B and I or W of microbatch 1"]


def test_how_many_more_problems_there_are() -> None:
    program = schedule("gpipe", ranks=2, microbatches=2)
    one = edited(program, 1, {"1F0": None, "1B0": None})
    assert complaint(one).startswith("stage 1 has no F of microbatch 0 (and 1 more)\n")
    assert " more)" not in complaint(edited(program, 1, {"1B0": None}))
