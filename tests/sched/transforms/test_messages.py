"""Messages: both ends of a channel agree, and receives are posted just ahead of their use."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from counterpoise.sched import (
    Edge,
    Pass,
    Program,
    check,
    kind,
    lower,
    parse_program,
    problems,
    schedule,
    schedules,
    simulate,
    unit_costs,
)
from counterpoise.sched.ir.channels import message_channels
from counterpoise.sched.ir.graph import make_graph

NAMES = [s.name for s in schedules()]


def encoded(microbatches: int = 4) -> Program:
    """1F1B on two ranks; rank 1 encodes, both stages take the features and return gradients."""
    base = schedule("1f1b", ranks=2, microbatches=microbatches)
    every = range(microbatches)
    forward, backward = ([Pass(1, kind, m) for m in every] for kind in ("EF", "EB"))
    rows = (base.ranks[0], (*forward, *base.ranks[1], *backward))
    features = [Edge(Pass(1, "EF", m), Pass(stage, "F", m)) for stage in (0, 1) for m in every]
    gradients = [Edge(Pass(stage, "B", m), Pass(1, "EB", m)) for stage in (0, 1) for m in every]
    return replace(base, ranks=rows, edges=(*features, *gradients))


def uses(program: Program, rank: int) -> dict[Pass, int]:
    """The index in the rank's row of the first pass that uses each of its receives."""
    row = program.ranks[rank]
    found = {}
    for receive in (item for item in row if item.kind.startswith("RECV")):
        if receive.kind.startswith("RECV_X_"):
            source = replace(receive, kind=receive.kind[7:])
            targets = {b for a, b in program.edges if a == source}
        else:
            kinds = "F" if receive.kind == "RECV_F" else "BI"
            targets = {replace(receive, kind=kind) for kind in kinds}
        found[receive] = next(at for at, item in enumerate(row) if item in targets)
    return found


def posted(program: Program, rank: int) -> dict[Pass, int]:
    """The number of compute passes between each receive of a rank and its first use."""
    row = program.ranks[rank]
    names = {barrier.name for barrier in program.barriers}
    return {
        receive: sum(
            item.kind not in names and kind(item.kind).role == "compute"
            for item in row[row.index(receive) : use]
        )
        for receive, use in uses(program, rank).items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_receive_is_posted_ahead_of_its_use_but_not_at_the_senders_time(
    name: str, ahead: int
) -> None:
    program = lower(schedule(name, ranks=4, microbatches=8), ahead=ahead)
    order = {}
    for messages in message_channels(make_graph(program)):
        order[messages.target, messages.source] = messages.receives
    for rank, row in enumerate(program.ranks):
        use, early = uses(program, rank), posted(program, rank)
        for receive, passes in early.items():
            first = sum(
                kind(p.kind).role == "compute" for p in row[: use[receive]] if p.kind[0] != "C"
            )
            if passes == min(ahead, first):
                continue
            # Posted earlier only because a later message of its channel is needed sooner.
            start = int(make_graph(program).start[rank])
            channel = next(
                r for (t, _), r in order.items() if t == rank and start + row.index(receive) in r
            )
            later = [row[n - start] for n in channel.tolist() if n > start + row.index(receive)]
            assert passes > ahead
            assert any(use[other] < use[receive] for other in later)


def test_1f1b_holds_at_most_two_buffers_a_channel() -> None:
    program = lower(schedule("1f1b", ranks=4, microbatches=16))
    for rank, row in enumerate(program.ranks):
        use = uses(program, rank)
        for at in range(len(row)):
            open_ = [r for r, last in use.items() if row.index(r) <= at < last]
            assert max(Counter(r.kind for r in open_).values(), default=0) <= 2


def test_a_v_sends_activations_and_gradients_down_one_channel() -> None:
    program = lower(schedule("zbv", ranks=2, microbatches=4))
    graph = make_graph(program)
    down = next(one for one in message_channels(graph) if (one.source, one.target) == (0, 1))
    assert {graph.name(node)[:-1] for node in down.sends.tolist()} == {"0SEND_F", "3SEND_B"}


def test_a_result_is_sent_once_to_each_rank_that_needs_it() -> None:
    program = lower(encoded())
    check(program)
    kinds = Counter(item.kind for row in program.ranks for item in row)
    assert (kinds["SEND_X_EF"], kinds["RECV_X_EF"]) == (4, 4)
    assert (kinds["SEND_X_B"], kinds["RECV_X_B"]) == (4, 4)
    assert all(item.stage == 0 for item in program.ranks[1] if item.kind == "RECV_X_B")


def test_a_result_that_is_received_twice_is_found() -> None:
    program = lower(encoded())
    (at,) = (k for k, item in enumerate(program.ranks[0]) if str(item) == "1RECV_X_EF3")
    rows = (*program.ranks[0][: at + 1], *program.ranks[0][at:])
    (problem, *_) = problems(replace(program, ranks=(rows, program.ranks[1])))
    assert problem.message.startswith("1RECV_X_EF3 is there 2 times")
    assert problem.culprits == ((0, at), (0, at + 1))


def test_edges_are_read_as_they_were_written() -> None:
    for program in (encoded(), lower(encoded())):
        assert parse_program(str(program)) == program
    assert "edges: 1EF0->0F0 1EF1->0F1 1EF2->0F2 1EF3->0F3" in str(encoded())


@pytest.mark.parametrize("text", ["1EF0", "1EF0->", "1EF0->F0", "1EF0-0F0"])
def test_what_is_no_edge_is_named_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 3: "):
        parse_program(f"placement: 0\nmicrobatches: 1\nedges: {text}\n0: 0F0 0B0")


def test_a_pass_waits_for_what_an_edge_brings() -> None:
    costs = unit_costs(10, 20)
    slow = replace(costs, pass_ns={**costs.pass_ns, "EF": 100}, p2p_ns=7)
    for program in (encoded(), lower(encoded())):
        row = simulate(program, slow).ranks[0]
        start = next(slot.start_ns for slot in row if slot.what == Pass(0, "F", 0))
        assert start == 107


def test_a_transfer_starts_when_its_receive_is_posted() -> None:
    text = "placement: 0 1\nmicrobatches: 1\n0: 0F0 0SEND_F0\n1: 1L0 1RECV_F0 1F0"
    timeline = simulate(
        parse_program(text), replace(unit_costs(10), p2p_ns=4, pass_ns={"F": 10, "L": 50})
    )
    assert timeline.ranks[1][-1].start_ns == 54


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("1EB3", "the edge 0B3->1EB3 names 1EB3, which is not in the program"),
        ("0RECV_X_B3", "0SEND_X_B3 has no matching receive"),
        ("0SEND_X_B3", "0RECV_X_B3 has no matching send"),
    ],
)
def test_a_broken_edge_is_shown_in_the_grid(without: str, message: str) -> None:
    program = lower(encoded())
    rows = tuple(tuple(p for p in row if str(p) != without) for row in program.ranks)
    with pytest.raises(ValueError, match=message) as caught:
        check(replace(program, ranks=rows))
    assert "[" in str(caught.value)


def test_a_message_that_no_edge_asks_for_is_refused() -> None:
    program = lower(encoded())
    rows = (program.ranks[0], (*program.ranks[1], Pass(1, "SEND_X_EB", 0)))
    with pytest.raises(ValueError, match="no edge takes the result of 1EB0 from rank 1"):
        check(replace(program, ranks=rows))


def test_an_encoder_that_comes_too_late_is_a_cycle() -> None:
    base = encoded()
    first, *rest = base.ranks[1]
    at = rest.index(Pass(1, "EB", 0))
    late = replace(base, ranks=(base.ranks[0], (*rest[:at], first, *rest[at:])))
    with pytest.raises(ValueError, match="1F0 comes before 1EF0, which it needs"):
        check(late)
    far = replace(late, edges=tuple(edge for edge in base.edges if edge.target.stage == 0))
    with pytest.raises(ValueError, match="deadlock: each of these waits"):
        check(far)


def test_layers_of_an_encoder_are_in_order() -> None:
    text = "placement: 0\nmicrobatches: 1\n0: 0EF_A0 0EF_B0 0F0 0B0 0EB_B0 0EB_A0"
    check(parse_program(text))
    for one, two in pairwise(["0EF_A0 0EF_B0", "0EF_B0 0EF_A0"]):
        with pytest.raises(ValueError, match="0EF_B0 comes before 0EF_A0"):
            check(parse_program(text.replace(one, two)))
    with pytest.raises(ValueError, match="0EB_A0 comes before 0EB_B0"):
        check(parse_program(text.replace("0EB_B0 0EB_A0", "0EB_A0 0EB_B0")))
