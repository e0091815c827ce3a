"""The simulator against independent arithmetic: longest paths, memory, bubbles, transfers."""

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from counterpoise.sched import (
    Barrier,
    Costs,
    Pass,
    Program,
    lower,
    parse_pass,
    schedule,
    schedules,
    simulate,
    unit_costs,
)
from counterpoise.sched.simulation.simulator import bubbles_by_cause

Times = dict[str, list[list[int]]]


def random_costs(program: Program, rng: random.Random) -> Costs:
    """Times that differ for every stage and microbatch, some of them zero."""
    kinds = {item.kind for row in program.ranks for item in row}
    times = {}
    for kind in sorted(kinds):
        ranked = kind in ("S", "T", "L", "E", "G", "IF", "IB", "C", "O")
        height = len(program.ranks) if ranked else program.stages
        times[kind] = [
            [rng.choice((0, rng.randrange(1, 50))) for _ in range(program.microbatches)]
            for _ in range(height)
        ]
    ranks = len(program.ranks)
    p2p = [[rng.randrange(9) for _ in range(ranks)] for _ in range(ranks)]
    collectives = {barrier.name: rng.randrange(9) for barrier in program.barriers}
    return Costs(times, p2p_ns=p2p, collective_ns=collectives)


def brute_force(program: Program, costs: Costs) -> int:
    """The makespan as the longest path, written down from the meaning of the passes."""
    where = {item: (r, at) for r, row in enumerate(program.ranks) for at, item in enumerate(row)}
    holder, last = program.placement, program.stages - 1
    sides = range(len(program.ranks))

    def travel(source: int, target: int) -> int:
        return costs.p2p_ns[source][target] if source != target else 0  # type: ignore[index]

    def first(*items: Pass) -> Pass:
        return next(item for item in items if item in where)

    @cache
    def end(item: Pass) -> int:
        rank, at = where[item]
        start = end(program.ranks[rank][at - 1]) if at else 0
        held = holds(program.ranks[rank][at - 1], rank) if at else []
        for ready in (*held, *needs(item, rank)):
            start = max(start, ready)
        duration = costs.pass_ns[item.kind][item.stage][item.microbatch]  # type: ignore[index]
        return int(start + duration)

    def needs(item: Pass, rank: int) -> list[int]:
        stage, kind, m = item.stage, item.kind, item.microbatch
        found = []
        if kind == "F" and stage:
            found.append(end(Pass(stage - 1, "F", m)) + travel(holder[stage - 1], rank))
        if kind in "BI":
            found.append(end(Pass(stage, "F", m)))
            if stage < last:
                after = first(Pass(stage + 1, "B", m), Pass(stage + 1, "I", m))
                found.append(end(after) + travel(holder[stage + 1], rank))
        before = {"W": "I", "T": "S", "E": "L", "G": "E", "IB": "IF"}
        if kind in before:
            found.append(end(Pass(stage, before[kind], m)))
        for barrier in program.barriers:
            for place, name in barrier.before:
                if name == kind and (
                    place == "every" or stage == {"first": 0, "last": last}[place]
                ):
                    found.append(met(barrier.name, m))
        return found

    def holds(item: Pass, rank: int) -> list[int]:
        """What keeps a rank from going on behind a pass: its messages, synchronous collectives."""
        found = []
        peer = item.stage + {"F": 1, "B": -1, "I": -1}.get(item.kind, 0)
        if not costs.overlap and peer != item.stage and 0 <= peer <= last:
            found.append(end(item) + travel(rank, holder[peer]))
        for barrier in program.barriers:
            own = barrier.source == "every" or item.stage == {"first": 0, "last": last}.get(
                barrier.source
            )
            if item.kind == barrier.after and own and (barrier.blocking or not costs.overlap):
                found.append(met(barrier.name, item.microbatch))
        return found

    @cache
    def met(name: str, m: int) -> int:
        """When a barrier is over: all there, and the one entered before it over too."""
        barrier = next(b for b in program.barriers if b.name == name)
        cost = costs.collective_ns[name]
        if barrier.source == "barrier":
            order = entered(next(b for b in program.barriers if b.name == barrier.after).after)
            begin = met(barrier.after, m)
        elif barrier.source == "every":
            order = entered(barrier.after)
            begin = max(end(Pass(side, barrier.after, m)) for side in sides)
        else:
            stage = 0 if barrier.source == "first" else last
            order = [
                p.microbatch
                for p in program.ranks[holder[stage]]
                if (p.stage, p.kind) == (stage, barrier.after)
            ]
            begin = end(Pass(stage, barrier.after, m))
        at = order.index(m)
        return max(begin, met(name, order[at - 1]) if at else 0) + cost

    def entered(kind: str) -> list[int]:
        return [p.microbatch for p in program.ranks[0] if p.kind == kind]

    return max(end(row[-1]) for row in program.ranks if row)


def random_program(rng: random.Random) -> Program:
    """A schedule of random kind and size, its passes moved about where that keeps it running."""
    found = rng.choice(schedules())
    ranks = rng.randrange(1, 5)
    microbatches = rng.randrange(1, 7)
    if found.name == "dualpipev":
        microbatches += 2 * ranks
    if found.name.startswith("interleaved") and microbatches > ranks:
        microbatches = ranks * rng.randrange(1, 3)
    options = {"inputs": True} if "inputs" in found.options and rng.random() < 0.5 else {}
    return schedule(found.name, ranks=ranks, microbatches=microbatches, **options)


def disturbed(program: Program, rng: random.Random) -> Program:
    """The same passes, some exchanged with their neighbours."""
    rows = []
    for row in map(list, program.ranks):
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(row))
            row[at - 1], row[at] = row[at], row[at - 1]
        rows.append(tuple(row))
    return Program(tuple(rows), program.placement, program.microbatches, program.barriers)


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_makespan_equals_the_longest_path_of_random_programs(count: int) -> None:
    rng = random.Random(4)
    timed = stopped = 0
    while timed < count:
        program = random_program(rng)
        if not any(barrier.blocking for barrier in program.barriers):
            program = disturbed(program, rng)
        costs = replace(random_costs(program, rng), overlap=rng.random() < 0.8)
        try:
            makespan = simulate(program, costs).makespan_ns
        except ValueError:  # the exchange made it wait for itself
            stopped += 1
            continue
        assert makespan == brute_force(program, costs), str(program)
        timed += 1
    assert stopped < 3 * count


@pytest.mark.parametrize("name", [s.name for s in schedules()])
def test_a_timeline_is_what_it_says(name: str) -> None:
    program = schedule(name, ranks=3, microbatches=6)
    costs = random_costs(program, random.Random(name))
    timeline = simulate(program, costs)
    for rank, row in enumerate(timeline.ranks):
        assert [slot.what for slot in row] == list(program.ranks[rank])
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(row))
        busy = sum(slot.end_ns - slot.start_ns for slot in row)
        assert (
            timeline.work_ns[rank] == busy == timeline.makespan_ns - timeline.bubbles[rank].total_ns
        )
        assert min(getattr(timeline.bubbles[rank], field) for field in FIELDS) >= 0


FIELDS = ("warmup_ns", "steady_ns", "cooldown_ns", "imbalance_ns", "communication_ns")


def test_bubbles_have_the_cause_that_makes_them() -> None:
    program = schedule("1f1b", ranks=4, microbatches=16)
    alike = simulate(program, unit_costs(10, 20))
    for idle in alike.bubbles:
        assert (idle.steady_ns, idle.imbalance_ns, idle.communication_ns) == (0, 0, 0)
    slow = Costs({"F": [10, 10, 10, 15], "B": [20, 20, 20, 30]})
    assert simulate(program, slow).bubbles[0].imbalance_ns > 100
    assert simulate(program, slow).bubbles[3].imbalance_ns == 0
    far = Costs({"F": 10, "B": 20}, p2p_ns=3)
    assert simulate(program, far).bubbles[0].communication_ns > 0


def test_only_the_time_that_a_free_rank_waits_is_communication() -> None:
    rows = tuple(tuple(Pass(rank, "F", m) for m in range(2)) for rank in range(2))
    costs = Costs({"F": [[1, 8], [3, 3]]}, p2p_ns=10)
    # rank 1 is free at 14; what it needs next has been computed at 9 and is there at 19
    timeline = simulate(Program(rows, (0, 1), 2), costs)
    assert [slot.start_ns for slot in timeline.ranks[1]] == [11, 19]
    assert timeline.bubbles[1].communication_ns == 10 + 5


def test_a_rank_that_only_goes_backward_has_no_steady_bubbles() -> None:
    kind, gaps = np.zeros(3, np.int64), np.array([1, 2, 3])
    found = bubbles_by_cause(("B",), kind, gaps, np.zeros(3, np.int64), 4, 0)
    assert (found.warmup_ns, found.steady_ns, found.cooldown_ns) == (1, 0, 5 + 4)


def test_waiting_for_who_is_late_to_a_collective_is_no_communication() -> None:
    first = Barrier("CX", "S", "every", ())
    second = Barrier("CG", "CX", "barrier", (("every", "T"),))
    rows = tuple((Pass(rank, "S", 0), Pass(rank, "T", 0)) for rank in range(2))
    program = Program(rows, (0, 1), 1, (first, second))
    costs = Costs({"S": [10, 3], "T": 1}, collective_ns={"CX": 2, "CG": 4})
    timeline = simulate(program, costs)
    assert [row[1].start_ns for row in timeline.ranks] == [16, 16]
    assert [idle.communication_ns for idle in timeline.bubbles] == [6, 6]
    assert timeline.bubbles[1].total_ns == 13


def test_without_overlap_the_only_collective_holds_up_the_passes_behind_it() -> None:
    rows = tuple((Pass(rank, "S", 0), Pass(rank, "T", 0)) for rank in range(2))
    program = Program(rows, (0, 1), 1, (Barrier("CX", "S", "every", ()),))
    costs = Costs({"S": [10, 3], "T": 1}, collective_ns={"CX": 2}, overlap=False)
    assert [row[1].start_ns for row in simulate(program, costs).ranks] == [12, 12]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zbv", "1f1b-alg1", "v-half-alg2"])
def test_memory_is_the_sum_of_what_is_held(name: str) -> None:
    program = schedule(name, ranks=4, microbatches=8)
    sizes = {"activation": 7, "weight": 3, "logits": 5}
    costs = Costs(unit_costs(10, 20, 3).pass_ns, buffer_bytes=sizes, parameter_bytes=[1, 2, 3, 4])
    timeline = simulate(program, costs)
    takes = {"F": 7, "S": 5}
    frees = {"B": 7, "I": 7 - 3, "W": 3, "T": 5}  # I leaves what W needs
    for rank, row in enumerate(timeline.ranks):
        for when, held in timeline.memory[rank]:
            got = sum(takes.get(s.what.kind, 0) for s in row if s.start_ns <= when)
            lost = sum(frees.get(s.what.kind, 0) for s in row if s.end_ns <= when)
            assert held == rank + 1 + got - lost
        times = [when for when, _ in timeline.memory[rank]]
        assert times == sorted(set(times))
        assert times[0] == 0
        assert timeline.memory[rank][-1][1] == rank + 1


@pytest.mark.parametrize("name", [s.name for s in schedules()])
def test_lowering_changes_no_time_where_ranks_continue_no_barrier(name: str) -> None:
    program = schedule(name, ranks=4, microbatches=8)
    costs = Costs(unit_costs(10, 20, 3).pass_ns, p2p_ns=2, collective_ns={"CS": 1, "CX": 2})
    lowered = lower(program, costs, continuations=False)
    assert simulate(lowered, costs).makespan_ns == simulate(program, costs).makespan_ns


def test_transfers_that_do_not_overlap_hold_the_sender() -> None:
    program = schedule("1f1b", ranks=2, microbatches=2)
    apart = Costs({"F": 10, "B": 10}, p2p_ns=4)
    held = Costs({"F": 10, "B": 10}, p2p_ns=4, overlap=False)
    # 0: F0 (send) F1 ...: the second forward starts when the first one's output has arrived.
    assert simulate(program, apart).ranks[0][1].start_ns == 10
    assert simulate(program, held).ranks[0][1].start_ns == 14


def test_collectives_of_a_communicator_run_one_after_the_other() -> None:
    program = schedule("1f1b-alg1", ranks=2, microbatches=4)
    costs = Costs(unit_costs(10, 20, 3).pass_ns, collective_ns={"CS": 1000})
    lane = simulate(program, costs).lanes["CS"]
    assert [slot.what.microbatch for slot in lane] == [0, 1, 2, 3]
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(lane))


def test_an_empty_rank_is_idle() -> None:
    program = Program(((Pass(0, "F", 0),), ()), (0,), 1)
    timeline = simulate(program, Costs({"F": 5}))
    assert [idle.total_ns for idle in timeline.bubbles] == [0, 5]


def test_a_rank_with_as_much_work_as_the_others_waits_for_no_imbalance() -> None:
    # Short forwards first on one rank, long ones first on the other: the same sum on both.
    costs = Costs({"F": [[10] * 3 + [30] * 3, [30] * 3 + [10] * 3], "B": 20})
    timeline = simulate(schedule("1f1b", ranks=2, microbatches=6), costs)
    assert timeline.work_ns == (240, 240)
    assert [(idle.steady_ns, idle.imbalance_ns) for idle in timeline.bubbles] == [(20, 0), (40, 0)]


def test_what_is_done_once_a_step_takes_the_first_columns_time() -> None:
    row = tuple(parse_pass(text) for text in ("0UNSHARD", "0F0", "0F1"))
    costs = Costs({"UNSHARD": [[5, 7]], "F": 1})
    assert simulate(Program((row,), (0,), 2), costs).makespan_ns == 7


def test_collectives_that_do_not_overlap_hold_the_ranks_that_enter_them() -> None:
    program = schedule("1f1b-alg1", ranks=2, microbatches=2, inputs=True)
    times = unit_costs(10, 20, 3).pass_ns
    costs = Costs(times, collective_ns={"CI": 100, "CX": 100, "CS": 100}, overlap=False)
    timeline = simulate(program, costs)
    # who enters: every rank after its IF and S, the last one after its F
    for kind, name, ranks in (("IF", "CI", (0, 1)), ("F", "CX", (1,)), ("S", "CS", (0, 1))):
        for barrier in timeline.lanes[name]:
            assert barrier.what.stage == 0
            for row in (timeline.ranks[rank] for rank in ranks):
                for slot, following in pairwise(row):
                    if (slot.what.kind, slot.what.microbatch) == (kind, barrier.what.microbatch):
                        assert following.start_ns >= barrier.end_ns


def test_what_unit_costs_do_not_name_takes_no_time() -> None:
    costs = unit_costs(3, 5, 7).pass_ns
    assert {costs[kind] for kind in ("EF", "EB", "O", "UNSHARD", "RESHARD", "REDUCE_GRAD")} == {0}
    assert [costs[kind] for kind in "FBIWST"] == [3, 5, 2, 3, 7, 7]
