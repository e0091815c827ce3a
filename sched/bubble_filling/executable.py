"""Filling for an executor that runs whole layers between passes, beside any schedule.

A runtime that calls modules cannot stop one in the middle: a layer is one piece of work, and a pass
of the language model leaves no gap inside. Encoders then run in the gaps between passes alone. In
exchange the language model may have any schedule, and layers and microbatches any times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..ir.kinds import layer_kind
from ..ir.program import Program
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from .encoder_plans import Host, groups_of
from .gaps import Ints, find_gaps
from .instance import FilledSchedule, FillProblem, Work
from .search import Effort, fill_bubbles


@dataclass(frozen=True, slots=True)
class EncoderTimes:
    """The times of an encoder's layers, from its inputs up, in nanoseconds.

    `backward_ns`: empty for a frozen encoder. `permille`: each microbatch's cost, 1000 for the
    times given; all of them by default.
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...] = ()
    permille: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not self.forward_ns or len(self.backward_ns) not in (0, len(self.forward_ns)):
            raise ValueError(
                f"an encoder has {len(self.forward_ns)} forward and {len(self.backward_ns)} "
                "backward times; give one for each layer, or none backward if it is frozen"
            )


def encoder_times(costs: Costs, layers: Sequence[int], *, width: int = 1) -> list[EncoderTimes]:
    """Return the encoders' times from those of their passes EF_A ..., by rank.

    `layers`: of each encoder. A layer's time is the mean over the ranks that run it. An encoder
    without times backward is frozen. Raises ValueError without times forward.

    >>> costs = Costs({"EF_A": [2, 4], "EF_B": [6, 6], "EB_B": [8, 10]})
    >>> encoder_times(costs, [1, 1])[1]
    EncoderTimes(forward_ns=(6,), backward_ns=(9,), permille=())
    """
    found, first = [], 0
    for count in layers:
        share = count // width
        places = [(n // share, layer_kind("", first + n % share)) for n in range(count)]
        forward, backward = (
            tuple(_mean(costs, direction + name, position, width) for position, name in places)
            for direction in ("EF", "EB")
        )
        if not all(forward):
            raise ValueError(
                f"the costs have no times of {count} encoder layers in pipelines of {width} ranks, "
                f"from EF{layer_kind('', first)} on; they have {' '.join(costs.pass_ns)}"
            )
        found.append(EncoderTimes(forward, backward if any(backward) else ()))
        first += share
    return found


def _mean(costs: Costs, kind: str, position: int, width: int) -> int:
    """Return the mean time of a pass on the ranks at a position of their encoder pipelines."""
    table = np.asarray(costs.pass_ns.get(kind, 0), np.int64)
    # One number is that of all ranks; a table may have a column for each microbatch.
    rows = (
        table.reshape(1, -1)
        if table.ndim < 2 and table.size == 1
        else table.reshape(len(table), -1)
    )
    own = rows[position::width] if len(rows) > 1 else rows
    return int(own[own > 0].mean()) if (own > 0).any() else 0


def fill_between_passes(
    program: Program,
    costs: Costs,
    encoders: Sequence[EncoderTimes],
    *,
    width: int = 1,
    fixed: bool = True,
    effort: Effort | None = None,
) -> tuple[Host, FilledSchedule]:
    """Fill the gaps between a program's passes with whole encoder layers.

    `costs`: of the program's passes. `width`: the ranks of an encoder pipeline. `fixed`: whether
    the i-th microbatch stays the language model's i-th, as it must where microbatches differ.
    `fill_program` makes a program of the result. Raises ValueError if `width` does not divide
    ranks and layers, and for programs whose gradients come in another order than its forwards.
    """
    _check_sizes(program, encoders, width)
    timeline = simulate(program, costs)
    # Without a word about what is inside, a pass computes from its start to its end.
    host = Host(program, costs, timeline, find_gaps(timeline, {}))
    effort = effort or Effort(tolerance_ns=max(1, timeline.makespan_ns // 10_000))
    return host, fill_bubbles(_problem(host, encoders, width, fixed), effort)


def _problem(host: Host, encoders: Sequence[EncoderTimes], width: int, fixed: bool) -> FillProblem:
    ranks = len(host.program.ranks)
    forward = _work([one.forward_ns for one in encoders], encoders, ranks, width)
    trained = [one for one in encoders if one.backward_ns]
    rising = _work([one.backward_ns for one in trained], trained, ranks, width)
    # Backwards go down.
    backward = replace(rising, ns=np.ascontiguousarray(rising.ns[:, :, ::-1]))
    total = forward.ns.sum(axis=(0, 2)) + backward.ns.sum(axis=(0, 2))
    return FillProblem(
        gaps=host.gaps,
        groups=groups_of(ranks, width),
        copies=1,
        forward=forward,
        backward=backward,
        hop_ns=int(np.max(host.costs.p2p_ns)),
        # Of a stage: the mean over the ranks, whose layers may differ.
        nominal_ns=np.broadcast_to(total // ranks, (host.program.microbatches,)),
        fixed=fixed,
        forward_layers=(1,) * len(forward.resource),
        backward_layers=(1,) * len(backward.resource),
        encoders=tuple((len(one.forward_ns) // width, bool(one.backward_ns)) for one in encoders),
    )


def _check_sizes(program: Program, encoders: Sequence[EncoderTimes], width: int) -> None:
    if width < 1 or len(program.ranks) % width:
        raise ValueError(
            f"encoder pipelines of {width} ranks do not divide {len(program.ranks)}; use a divisor"
        )
    for one in encoders:
        if len(one.forward_ns) % width:
            raise ValueError(f"{len(one.forward_ns)} layers do not divide into {width} stages")
        if len(one.permille) not in (0, program.microbatches):
            raise ValueError(
                f"{len(one.permille)} costs for {program.microbatches} microbatches; give all"
            )


def _work(
    times: Sequence[tuple[int, ...]], encoders: Sequence[EncoderTimes], ranks: int, width: int
) -> Work:
    """Return whole layers as kernels, (ranks, microbatches or 1, layers of a stage)."""
    rows: list[Ints] = []
    equal = not any(one.permille for one in encoders)
    for position in range(width):
        parts = []
        for layers, one in zip(times, encoders, strict=True):
            share = len(layers) // width
            own = np.array(layers[position * share : (position + 1) * share], np.int64)
            scale = np.array([1000] if equal else one.permille or [1000], np.int64)
            parts.append(own[None] * scale[:, None] // 1000)
        most = max((len(part) for part in parts), default=1)
        wide = [np.broadcast_to(part, (most, part.shape[1])) for part in parts]
        rows.append(np.concatenate(wide, axis=1) if wide else np.zeros((1, 0), np.int64))
    # No pass takes no time: the order of what ends at one moment would be unclear.
    ns = np.maximum(np.stack([rows[rank % width] for rank in range(ranks)]), 1)
    count = ns.shape[2]
    return Work(np.zeros(count, np.int64), np.ascontiguousarray(ns), np.zeros(count, np.int64))
