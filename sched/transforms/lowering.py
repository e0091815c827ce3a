"""Lower a program: add passes for its sends, receives and collectives.

Messages: each ordered pair of ranks has a one-way channel (a communicator). A SEND follows the pass
that makes its message. A RECV is posted just before the compute pass that precedes its consumer:
the transfer runs beside that pass, and a channel holds two buffers, not one for each message that
the sender is ahead by. Channels have no tags, so both ends must see the messages in one order, that
of the sends; a RECV that would come after a later message's is moved up in front of it. Messages
never close a cycle: a RECV comes after nothing but passes that its consumer comes after too.

Collectives: every rank enters a barrier with a pass of the barrier's name. It does not wait there;
the passes that need the result do. Each barrier class has its own communicator: on a common one the
ranks of Algorithm 1 would enter in different orders and deadlock, because the last rank broadcasts
with its forward and the others enter when their vocabulary pass needs the result. A rank that
contributes nothing to a barrier enters it at the time when the barrier starts, so that no rank
waits for it. A barrier that follows another one (Algorithm 2's reduction follows the statistics of
the softmax) needs a computation on the ranks in between, to rescale: a continuation C, in front of
the first pass that starts after the statistics are there. Both positions are taken from a simulated
timeline and keep its order of events, so they cannot close a cycle.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..ir.channels import crossing_results
from ..ir.graph import Graph, make_graph
from ..ir.kinds import BACKWARD, is_compute, is_kind
from ..ir.paths import complete_paths
from ..ir.program import Barrier, Pass, Program
from ..simulation.costs import Costs, unit_costs
from ..simulation.simulator import node_times

Place = tuple[int, int]


class Message(NamedTuple):
    """A result that leaves its rank: the passes that send and receive it, and the first to use it.

    `consumer`: (rank, index in the rank's list).
    """

    send: Pass
    receive: Pass
    consumer: Place


def post_ahead(program: Program, ahead: int) -> Program:
    """Return the program with messages, each received `ahead` compute passes before its consumer.

    >>> from counterpoise.sched import schedule
    >>> print(*post_ahead(schedule("1f1b", ranks=2, microbatches=2), 1).ranks[1])
    1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1
    """
    by_place = _messages(program)
    # Receives to put in front of the pass at an index, and the sends of each pass, by rank.
    front: list[dict[int, list[Pass]]] = [{} for _ in program.ranks]
    behind: list[dict[int, list[Pass]]] = [{} for _ in program.ranks]
    # For every index of a row the number of compute passes before it.
    computing = [
        list(accumulate((is_compute(pass_.kind) for pass_ in row), initial=0))
        for row in program.ranks
    ]
    latest: dict[Place, int] = {}
    # Backwards, so that a message knows where the next one of its channel is received.
    for (rank, at), messages in sorted(by_place.items(), reverse=True):
        for message in reversed(messages):
            there, place = message.consumer
            numbers = computing[there]
            # The compute pass that is `ahead` before its consumer, or the row's beginning.
            place = bisect_right(numbers, max(0, numbers[place] - ahead), 0, place + 1) - 1
            place = min(place, latest.get((rank, there), place))
            latest[rank, there] = place
            front[there].setdefault(place, []).insert(0, message.receive)
            sends = behind[rank].setdefault(at, [])
            if message.send not in sends:  # one SEND serves all ranks that an edge leads to
                sends.insert(0, message.send)
    rows = (
        [
            part
            for at, pass_ in enumerate(row)
            for part in (*front[rank].get(at, ()), pass_, *behind[rank].get(at, ()))
        ]
        for rank, row in enumerate(program.ranks)
    )
    return replace(program, ranks=tuple(map(tuple, rows)))


def _messages(program: Program) -> dict[Place, list[Message]]:
    """Return the messages that each pass makes, by its place; those of a pass in a fixed order."""
    places = {
        pass_: (rank, at) for rank, row in enumerate(program.ranks) for at, pass_ in enumerate(row)
    }
    first: dict[tuple[Pass, int], Place] = {}
    for edge in program.edges:
        if edge.target in places:
            consumer = places[edge.target]
            # One message a result and rank: it has to be there for the earliest of its readers.
            key = edge.source, consumer[0]
            first[key] = min(first.get(key, consumer), consumer)
    messages: dict[Place, list[Message]] = {}
    for pass_, place in places.items():
        if (pair := _pair(pass_, program)) is None:
            continue
        # To the stage that needs the result, by a B or an I.
        users = ("F",) if pass_.kind == "F" else BACKWARD
        there = (places.get(Pass(pair[1].stage, name, pass_.microbatch)) for name in users)
        if (reader := next(filter(None, there), None)) is not None:
            messages.setdefault(place, []).append(Message(*pair, reader))
    for source, rank in crossing_results(program):
        if source in places and (source, rank) in first:
            send = replace(source, kind=f"SEND_X_{source.kind}")
            receive = replace(source, kind=f"RECV_X_{source.kind}")
            message = Message(send, receive, first[source, rank])
            messages.setdefault(places[source], []).append(message)
    return messages


def _pair(pass_: Pass, program: Program) -> tuple[Pass, Pass] | None:
    """Return the SEND after a pass and the RECV on the peer, if its result leaves the rank."""
    step = 1 if pass_.kind == "F" else -1 if pass_.kind in BACKWARD else 0
    peer = pass_.stage + step
    if not step or not 0 <= peer < program.stages:
        return None
    if program.placement[peer] == program.placement[pass_.stage]:
        return None
    name = "F" if step > 0 else "B"
    return Pass(pass_.stage, f"SEND_{name}", pass_.microbatch), Pass(
        peer, f"RECV_{name}", pass_.microbatch
    )


def lower(
    program: Program, costs: Costs | None = None, *, continuations: bool = True, ahead: int = 1
) -> Program:
    """Return the program with sends, receives, collectives and continuations.

    `costs`: used to find the positions of late collectives; only their proportions matter.
    `continuations`: whether ranks rescale between their passes, with C; False is for runtimes that
    rescale on the collectives' stream. `ahead`: the number of compute passes before its consumer
    that a receive is posted. Raises ValueError if the program has messages already or cannot run to
    its end, and for a negative `ahead`.

    >>> from counterpoise.sched import schedule
    >>> for row in lower(schedule("1f1b", ranks=2, microbatches=1)).ranks:
    ...     print(*row)
    0RECV_B0 0F0 0SEND_F0 0B0
    1RECV_F0 1F0 1B0 1SEND_B0
    """
    if any(pass_.kind[:5] in ("SEND_", "RECV_") for row in program.ranks for pass_ in row):
        raise ValueError("the program has sends and receives already; lower it only once")
    if ahead < 0:
        raise ValueError(f"ahead is {ahead}; give 0 or more passes")
    graph = make_graph(program)
    if program.barriers:
        program = _with_collectives(graph, positive_costs(program, costs), continuations)
    else:
        # Messages follow from the order of the passes alone, which need not be timed.
        complete_paths(graph.source, graph.target, np.zeros_like(graph.source), graph.nodes)
    return post_ahead(program, ahead)


def positive_costs(program: Program, costs: Costs | None = None) -> Costs:
    """Return costs in which every pass takes time, so that no two events of a rank coincide.

    `costs`: by default some that fit every program.
    """
    costs = costs or unit_costs(10, 20, 3)
    kinds = {pass_.kind for row in program.ranks for pass_ in row if is_kind(pass_.kind)}
    times = dict.fromkeys(kinds, 1) | dict(costs.pass_ns)
    return replace(costs, pass_ns={k: np.maximum(np.asarray(v), 1) for k, v in times.items()})


class _Event(NamedTuple):
    """A barrier's collective of one microbatch."""

    start_ns: int
    microbatch: int
    end_ns: int


def _with_collectives(graph: Graph, costs: Costs, continuations: bool) -> Program:
    """Return the program with a pass wherever a rank enters a barrier's collective."""
    program, times = graph.program, node_times(graph, costs)
    events: dict[str, list[_Event]] = {barrier.name: [] for barrier in program.barriers}
    columns = (times.start[graph.passes :], graph.barrier_microbatch, times.end[graph.passes :])
    for index, *event in zip(*(c.tolist() for c in (graph.barrier, *columns)), strict=True):
        events[program.barriers[index].name].append(_Event(*event))
    events = {name: sorted(entries) for name, entries in events.items()}
    rows = list(program.ranks)
    for rank in program.members:
        nodes = slice(graph.start[rank], graph.start[rank] + len(rows[rank]))
        starts, ends = times.start[nodes].tolist(), times.end[nodes].tolist()
        rows[rank] = _entered(program, rank, starts, ends, events, continuations)
    if not continuations:
        return replace(program, ranks=tuple(rows))
    # A continuation waits for the barrier that it continues.
    held = {barrier.after for barrier in program.barriers if barrier.source == "barrier"}
    barriers = tuple(
        replace(b, before=(*b.before, ("every", "C"))) if b.name in held else b
        for b in program.barriers
    )
    return replace(program, ranks=tuple(rows), barriers=barriers)


def _entered(
    program: Program,
    rank: int,
    starts: list[int],
    ends: list[int],
    events: Mapping[str, list[_Event]],
    continuations: bool,
) -> tuple[Pass, ...]:
    """Return the rank's row with the collectives that it enters.

    `starts`, `ends`: ns of its passes. `events`: each barrier's collectives in order.
    """
    row = program.ranks[rank]
    # Collectives to enter before the pass at an index: those that times give a position.
    front: dict[int, list[Pass]] = {}
    sources = {"first": program.placement[0], "last": program.placement[-1]}
    for barrier in program.barriers:
        if barrier.source == "barrier":
            # A continuation goes in front of the first pass that starts after the barrier's end.
            for event in events[barrier.after] if continuations else ():
                pair = Pass(rank, "C", event.microbatch), Pass(rank, barrier.name, event.microbatch)
                front.setdefault(bisect_left(starts, event.end_ns), []).extend(pair)
        elif rank != sources.get(barrier.source, rank):
            # The rank contributes nothing, so it enters when the barrier starts.
            for event in events[barrier.name]:
                entry = Pass(rank, barrier.name, event.microbatch)
                front.setdefault(bisect_left(ends, event.start_ns), []).append(entry)
    # A rank that contributes enters right after the pass that makes its part.
    out: list[Pass] = []
    for at, pass_ in enumerate(row):
        out += [*front.get(at, ()), pass_]
        out += [
            Pass(rank, barrier.name, pass_.microbatch)
            for barrier in program.barriers
            if _makes(barrier, pass_, program)
        ]
    return (*out, *front.get(len(row), ()))


def _makes(barrier: Barrier, pass_: Pass, program: Program) -> bool:
    """Return whether the rank enters the barrier right after this pass."""
    if pass_.kind != barrier.after or barrier.source == "barrier":
        return False
    ends = {"first": 0, "last": program.stages - 1}
    return barrier.source == "every" or pass_.stage == ends[barrier.source]
