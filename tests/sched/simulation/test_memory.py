"""The simulator's peak of memory is that of an executor that frees at the last reader."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from counterpoise.sched import Costs, Edge, Pass, Program, lower, schedule, simulate, unit_costs

NAMES = ("1f1b", "zb-h1", "v-half", "1f1b-alg1", "1f1b-alg2")
RANKS, MICROBATCHES = 4, 12
Sizes = dict[str, list[list[int]]]


def random_sizes(program: Program, rng: random.Random) -> Sizes:
    """Bytes that differ for every stage and microbatch."""
    names = ("activation", "weight", "logits", "recomputed")
    rows = dict.fromkeys(names, program.stages) | {"logits": len(program.ranks)}
    return {
        name: [[rng.randrange(1, 99) for _ in range(program.microbatches)] for _ in range(count)]
        for name, count in rows.items()
    }


def held_at_most(program: Program, rank: int, sizes: Sizes) -> int:
    """Walk a rank's list as an executor does, and return the most bytes that it ever holds."""
    held: Counter[tuple[str, int, int]] = Counter()
    most = 0
    makes = {"F": "activation", "S": "logits", "I": "weight"}
    reads = {"B": "activation", "I": "activation", "W": "weight", "T": "logits"}
    for item in program.ranks[rank]:
        if item.kind not in makes and item.kind not in reads:
            continue
        place = item.stage, item.microbatch
        now = held.total()
        if item.kind in "BI":
            now += sizes["recomputed"][item.stage][item.microbatch]
        most = max(most, now)
        if item.kind in reads:
            del held[reads[item.kind], *place]
        if item.kind in makes:
            held[makes[item.kind], *place] = sizes[makes[item.kind]][item.stage][item.microbatch]
        most = max(most, held.total())
    return most


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_what_an_executor_holds(name: str) -> None:
    program = schedule(name, ranks=RANKS, microbatches=MICROBATCHES)
    for seed in range(5):
        sizes = random_sizes(program, random.Random(seed))
        costs = replace(unit_costs(10, 20, 3), buffer_bytes=sizes)
        wanted = tuple(held_at_most(program, rank, sizes) for rank in range(RANKS))
        assert simulate(program, costs).peak_bytes == wanted
        assert simulate(lower(program), costs).peak_bytes == wanted


def curve(program: Program, costs: Costs, rank: int) -> tuple[tuple[int, int], ...]:
    return simulate(program, costs).memory[rank]


def test_a_result_is_held_until_it_has_arrived_and_a_receive_from_its_post() -> None:
    program = lower(schedule("1f1b", ranks=2, microbatches=1))
    costs = Costs({"F": 10, "B": 20}, p2p_ns=4, buffer_bytes={"message": [[5], [3]]})
    # Rank 0: 10-14 the activation that it sends; its gradient's buffer from the post, in front of
    # F, to the end of B. Rank 1: the activation's buffer until F, then the gradient that it sends.
    assert curve(program, costs, 0) == ((0, 3), (10, 8), (14, 3), (68, 0))
    assert curve(program, costs, 1) == ((0, 5), (14, 0), (44, 3), (48, 0))


def test_a_result_for_two_ranks_is_held_once() -> None:
    base = schedule("1f1b", ranks=3, microbatches=1)
    rows = ((Pass(0, "EF", 0), *base.ranks[0]), *base.ranks[1:])
    edges = tuple(Edge(Pass(0, "EF", 0), Pass(stage, "F", 0)) for stage in (1, 2))
    program = lower(replace(base, ranks=rows, edges=edges))
    times = {"F": 10, "B": 20, "EF": 6}
    costs = Costs(times, p2p_ns=4, buffer_bytes={"features": 7})
    assert curve(program, costs, 0) == ((0, 0), (6, 7), (10, 0))
    # Stage 2's features lie there from the post at 0 until its F has begun.
    assert curve(program, costs, 2) == ((0, 7), (34, 0))


def test_messages_are_counted_only_where_the_program_says_them() -> None:
    program = schedule("1f1b", ranks=2, microbatches=2)
    costs = Costs({"F": 10, "B": 20}, buffer_bytes={"message": 5})
    assert simulate(program, costs).peak_bytes == (0, 0)


def test_input_gradients_turn_activations_into_what_weights_need() -> None:
    program = schedule("zb-h1", ranks=1, microbatches=1)
    for activation, weight in ((10, 8), (8, 10)):
        sizes = {"activation": activation, "weight": weight}
        costs = Costs({"F": 10, "I": 10, "W": 10}, buffer_bytes=sizes)
        assert simulate(program, costs).peak_bytes == (10,)


def test_a_message_that_nobody_receives_is_left_to_the_checker() -> None:
    lowered = lower(schedule("1f1b", ranks=2, microbatches=2))
    row = tuple(item for item in lowered.ranks[0] if str(item) != "0RECV_B1")
    costs = Costs({"F": 1, "B": 2}, buffer_bytes={"message": 5})
    assert simulate(lowered, costs).peak_bytes == (10, 5)
    assert simulate(replace(lowered, ranks=(row, lowered.ranks[1])), costs).peak_bytes == (5, 5)
