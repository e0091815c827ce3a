"""Timelines of measured steps, in the simulator's own type, and their JSON.

A runtime notes when each pass started and ended on every rank; `measured_timeline` makes a Timeline
of that. The JSON also holds what the microbatches contained, since costs are functions of it:

    {"name": "1f1b, step 12", "placement": [0, 1],
     "ranks": [[["0F0", 0, 1200], ["0B0", 4100, 6500]], [["1F0", 1300, 2500], ...]],
     "microbatches": [{"tokens": 4096, "tiles": 12}]}

Optional are `lanes` (by communicator, its collectives in the same form), `memory` (by rank, (ns,
bytes) steps), and the `bubbles`, which simulated timelines have.

`agreement` compares a measured step with a simulated one. They differ for two reasons: passes took
other times than planned, and ranks waited for other things than passes (messages, cores). Simulated
with the times that the passes took (`measured_costs`), only the second one is left.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ..ir.kinds import is_kind, is_ranked, kind
from ..ir.program import NO_MICROBATCH, parse_pass
from ..ir.typed_json import Whole, read_json
from .cost_profile import Resources
from .costs import Costs
from .simulator import bubbles_by_cause
from .timeline import Bubbles, Curve, Slot, Timeline

Row = Sequence[Slot]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step's timeline, and the resources of its microbatches (none if they are not known)."""

    timeline: Timeline
    microbatches: tuple[Resources, ...] = ()


def measured_timeline(
    name: str,
    placement: Sequence[int],
    ranks: Sequence[Row],
    *,
    lanes: Mapping[str, Row] | None = None,
    memory: Sequence[Curve] = (),
) -> Timeline:
    """Return the timeline of what was measured, with its first event at 0.

    `ranks[r]`: rank r's passes in order, in nanoseconds of one clock. `memory[r]`: (ns, bytes)
    steps of the same clock; without it, memory is 0. A rank's idle time is told apart by place and
    by its work, not by communication: what a rank waited for is not measured. Raises ValueError
    for passes of a rank that overlap or end before they start.

    >>> from counterpoise.sched import Pass
    >>> row = (Slot(Pass(0, "F", 0), 107, 110), Slot(Pass(0, "B", 0), 112, 118))
    >>> timeline = measured_timeline("tiny", (0,), [row])
    >>> timeline.ranks[0][1].start_ns, timeline.makespan_ns, timeline.bubbles[0].warmup_ns
    (5, 11, 2)
    """
    lanes = lanes or {}
    rows = [*ranks, *lanes.values()]
    for where, row in zip([*map(str, range(len(ranks))), *lanes], rows, strict=True):
        _check_order(where, row)
    zero = min((slot.start_ns for row in rows for slot in row), default=0)  # of any clock
    moved = [tuple(Slot(p, start - zero, end - zero) for p, start, end in row) for row in rows]
    makespan = max((slot.end_ns for row in moved for slot in row), default=0)
    rows_by_rank = tuple(moved[: len(ranks)])
    curves = [tuple((max(0, at - zero), held) for at, held in curve) for curve in memory]
    return Timeline(
        name=name,
        placement=tuple(placement),
        ranks=rows_by_rank,
        lanes=dict(zip(lanes, moved[len(ranks) :], strict=True)),
        makespan_ns=makespan,
        bubbles=_bubbles(rows_by_rank, makespan),
        memory=tuple(curves) or (((0, 0),),) * len(ranks),
    )


def _check_order(where: str, row: Row) -> None:
    last = None
    for slot in row:
        if slot.end_ns < slot.start_ns:
            raise ValueError(f"{slot.what} of row {where} ends {slot.end_ns}, before it starts")
        if last is not None and slot.start_ns < last.end_ns:
            raise ValueError(
                f"{slot.what} of row {where} starts at {slot.start_ns}, before {last.what} ends "
                f"at {last.end_ns}; give each rank's passes in order, in whole ns of one clock"
            )
        last = slot


def _bubbles(ranks: Sequence[Row], makespan: int) -> tuple[Bubbles, ...]:
    work = [sum(slot.end_ns - slot.start_ns for slot in row) for row in ranks]
    rows = zip(ranks, work, strict=True)
    return tuple(row_bubbles(row, makespan, max(work) - rank_ns) for row, rank_ns in rows)


def row_bubbles(row: Row, makespan_ns: int, spare_ns: int = 0) -> Bubbles:
    """Return a rank's idle time by cause, none of it by communication.

    `spare_ns`: the work it has less than the busiest rank.
    """
    kinds = tuple(dict.fromkeys(slot.what.kind for slot in row))
    kind = np.array([kinds.index(slot.what.kind) for slot in row], np.int64)
    start = np.array([slot.start_ns for slot in row], np.int64)
    busy = np.maximum.accumulate([0, *(slot.end_ns for slot in row)])
    gaps = np.maximum(start - busy[:-1], 0)
    tail = makespan_ns - int(busy[-1])
    return bubbles_by_cause(kinds, kind, gaps, np.zeros_like(gaps), tail, spare_ns)


_Slots = tuple[tuple[str, Whole, Whole], ...]


class _StepFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON of a step."""

    placement: tuple[Whole, ...]
    ranks: tuple[_Slots, ...]
    name: str = ""
    lanes: Mapping[str, _Slots] = {}
    memory: tuple[Curve, ...] = ()
    bubbles: tuple[Bubbles, ...] = ()
    microbatches: tuple[Mapping[str, Whole], ...] = ()


def dump_step(step: MeasuredStep) -> str:
    """Return a step as JSON; `load_step` reads it. Simulated timelines keep all they have."""
    timeline = step.timeline
    file = _StepFile(
        placement=timeline.placement,
        ranks=tuple(map(_written, timeline.ranks)),
        name=timeline.name,
        lanes={name: _written(row) for name, row in timeline.lanes.items()},
        memory=timeline.memory,
        bubbles=timeline.bubbles,
        microbatches=tuple(dict(resources) for resources in step.microbatches),
    )
    return msgspec.json.encode(file).decode()


def load_step(text: str) -> MeasuredStep:
    """Return the step that JSON text holds.

    Raises ValueError, in one line, for another form, for text that is no pass, for passes of a rank
    that overlap, and for a microbatch that has no resources where others have.
    """
    file = read_json(text, _StepFile, "the timeline")
    ranks = [_read(row) for row in file.ranks]
    lanes = {name: _read(row) for name, row in file.lanes.items()}
    timeline = measured_timeline(file.name, file.placement, ranks, lanes=lanes, memory=file.memory)
    numbers = [slot.what.microbatch for row in ranks for slot in row]
    if file.microbatches and max(numbers, default=0) >= len(file.microbatches):
        raise ValueError(
            f"the timeline has passes of microbatch {max(numbers)}, but resources of "
            f"{len(file.microbatches)} microbatches; give those of all"
        )
    for field, rows in (("bubbles", file.bubbles), ("memory", file.memory)):
        if rows and len(rows) != len(ranks):
            raise ValueError(f"the timeline has {len(ranks)} ranks and {field} of {len(rows)}")
    # What was written had the causes of idle time; without them, they follow from the passes.
    bubbles = file.bubbles or timeline.bubbles
    return MeasuredStep(replace(timeline, bubbles=bubbles), file.microbatches)


def _written(row: Row) -> _Slots:
    return tuple((str(slot.what), slot.start_ns, slot.end_ns) for slot in row)


def _read(row: _Slots) -> tuple[Slot, ...]:
    return tuple(Slot(parse_pass(text), start, end) for text, start, end in row)


def compute_slots(timeline: Timeline) -> list[tuple[int, Slot]]:
    """Return (rank, slot) of all passes that compute; messages and collectives are left out."""
    return [
        (rank, slot)
        for rank, row in enumerate(timeline.ranks)
        for slot in row
        if is_kind(slot.what.kind) and kind(slot.what.kind).role in ("compute", "continuation")
    ]


_ENCODER = ("EF", "EB")


def measured_costs(measured: Timeline) -> Costs:
    """Return the time that each pass of a measured step took; messages take none, nor memory.

    >>> from counterpoise.sched import Pass, Slot, schedule, simulate, unit_costs
    >>> program = schedule("1f1b", ranks=2, microbatches=4)
    >>> simulate(program, measured_costs(simulate(program, unit_costs(3, 5)))).makespan_ns
    40
    """
    slots = [slot for row in measured.ranks for slot in row]
    microbatches = 1 + max((slot.what.microbatch for slot in slots), default=0)
    times: dict[str, list[list[int]]] = {}
    for pass_, start_ns, end_ns in slots:
        rows = len(measured.ranks) if is_ranked(pass_.kind) else len(measured.placement)
        table = times.setdefault(pass_.kind, [[0] * microbatches for _ in range(rows)])
        column = 0 if pass_.microbatch == NO_MICROBATCH else pass_.microbatch
        table[pass_.stage][column] = end_ns - start_ns
    return Costs(times, buffer_bytes={})


def hidden_share(timeline: Timeline) -> float:
    r"""Return the share of the encoders' time that lies between a rank's other passes.

    Encoder passes before a rank's first other pass and after its last one are exposed; without any
    encoder pass nothing is, and the share is 1.

    >>> from counterpoise.sched import Costs, parse_program, simulate
    >>> text = "placement: 0\nmicrobatches: 2\n0: 0EF0 0F0 0EF1 0F1 0B0 0EB0 0B1 0EB1"
    >>> hidden_share(simulate(parse_program(text), Costs({"F": 2, "B": 4, "EF": 1, "EB": 3})))
    0.5
    """
    hidden = whole = 0
    for row in timeline.ranks:
        language = [slot for slot in row if not _is_encoder(slot)]
        for slot in filter(_is_encoder, row):
            whole += slot.end_ns - slot.start_ns
            if language and language[0].start_ns < slot.start_ns < language[-1].start_ns:
                hidden += slot.end_ns - slot.start_ns
    return hidden / whole if whole else 1.0


def _is_encoder(slot: Slot) -> bool:
    return slot.what.kind[:2] in _ENCODER


@dataclass(frozen=True, slots=True)
class KindAgreement:
    """The passes of a kind: their number, and their times together, simulated and measured."""

    kind: str
    passes: int
    simulated_ns: int
    measured_ns: int

    @property
    def ratio(self) -> float:
        """Return measured by simulated time; 1 where neither takes any."""
        return (self.measured_ns or 1) / (self.simulated_ns or 1)


def differing_passes(simulated: Timeline, measured: Timeline) -> str:
    """Return how the two timelines' computing passes differ, "" if they have the same."""
    if simulated.placement != measured.placement:
        return f"stages on ranks {simulated.placement} and {measured.placement}"
    ours, theirs = (Counter(s.what for _, s in compute_slots(t)) for t in (simulated, measured))
    for present, compared, where in ((ours, theirs, "measured"), (theirs, ours, "simulated")):
        if missing := sorted((present - compared).elements(), key=str):
            return f"{missing[0]} is not in the {where} one"
    return ""


def agreement(simulated: Timeline, measured: Timeline) -> tuple[KindAgreement, ...]:
    """Return for each kind how long its passes take in both, sorted by kind.

    Raises ValueError if the timelines are not of the same passes.
    """
    if difference := differing_passes(simulated, measured):
        raise ValueError(
            f"{measured.name or 'the measured step'} and {simulated.name} differ: {difference}; "
            "compare a step with the program that it ran, of the same size"
        )
    times = [Counter[str](), Counter[str]()]
    count = Counter(slot.what.kind for _, slot in compute_slots(measured))
    for total, timeline in zip(times, (simulated, measured), strict=True):
        for _, slot in compute_slots(timeline):
            total[slot.what.kind] += slot.end_ns - slot.start_ns
    return tuple(
        KindAgreement(kind, count[kind], times[0][kind], times[1][kind]) for kind in sorted(count)
    )
