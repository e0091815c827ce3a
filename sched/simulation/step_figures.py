"""Figures of a measured step: what the simulator makes of the same passes, and the hidden share.

A measured step differs from its simulation for two reasons: passes took other times than planned,
and ranks waited for other things than passes (messages, cores). Simulated with the times that the
passes took, only the second one is left.
"""

from ..ir.kinds import is_kind, kind
from ..ir.passes import NO_MICROBATCH
from .costs import Costs
from .timeline import Slot, Timeline

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
    for what, start_ns, end_ns in slots:
        ranked = is_kind(what.kind) and kind(what.kind).scope == "rank"
        rows = len(measured.ranks) if ranked else len(measured.placement)
        table = times.setdefault(what.kind, [[0] * microbatches for _ in range(rows)])
        column = 0 if what.microbatch == NO_MICROBATCH else what.microbatch
        table[what.stage][column] = end_ns - start_ns
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
        others = [slot for slot in row if not _of_encoder(slot)]
        for slot in filter(_of_encoder, row):
            whole += slot.end_ns - slot.start_ns
            if others and others[0].start_ns < slot.start_ns < others[-1].start_ns:
                hidden += slot.end_ns - slot.start_ns
    return hidden / whole if whole else 1.0


def _of_encoder(slot: Slot) -> bool:
    return slot.what.kind[:2] in _ENCODER
