"""Ways to place a model's vocabulary layers: the baselines and vocabulary parallelism.

`arrange` makes the program and the costs of a method from the times of one layer and of the whole
output layer:

- last-stage: layers spread evenly, the output layer on top of the last stage (Megatron-LM);
- redis: layers redistributed so that the longest stage is as short as can be;
- interlaced: all ranks stop for the output layer (nnScaler);
- naive, alg1, alg2: vocabulary parallelism (`vocabulary`).
"""

from dataclasses import dataclass

from counterpoise.sched.generators.blocks import Pace
from counterpoise.sched.generators.vocabulary import FORMS, vocabulary
from counterpoise.sched.ir.program import Program, place
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.shapes import partition
from counterpoise.sched.simulation.costs import Costs, Table

METHODS = ("last-stage", "redis", "interlaced", *FORMS)


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Times in ns of a microbatch: of one layer, and of the whole output layer on one rank."""

    layers: int
    forward_ns: int
    backward_ns: int
    output_forward_ns: int
    output_backward_ns: int


def arrange(
    method: str, times: ModelTimes, *, ranks: int, microbatches: int
) -> tuple[Program, Costs]:
    """Return the program and costs of a method on 1F1B.

    Raises ValueError for an unknown method or layers that do not divide by the ranks (all methods
    but redis).
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; give one of {', '.join(METHODS)}")
    if method == "redis":
        sizes = redistribute(times, ranks)
    elif times.layers % ranks:
        raise ValueError(f"{times.layers} layers do not divide by {ranks} ranks; use redis")
    else:
        sizes = (times.layers // ranks,) * ranks
    forward = [size * times.forward_ns for size in sizes]
    backward = [size * times.backward_ns for size in sizes]
    if method in ("last-stage", "redis"):
        forward[-1] += times.output_forward_ns
        backward[-1] += times.output_backward_ns
        program = schedule("1f1b", ranks=ranks, microbatches=microbatches)
        return program, Costs({"F": forward, "B": backward})
    output = output_ns(method, times, ranks)
    pass_ns: dict[str, Table] = {"F": forward, "B": backward, **output}
    if method == "interlaced":
        return schedule("1f1b-interlaced", ranks=ranks, microbatches=microbatches), Costs(pass_ns)
    pace = Pace(max(1, forward[0]), max(1, backward[0]), sum(output.values()))
    program = vocabulary("1f1b", method, ranks=ranks, microbatches=microbatches, pace=pace)
    return program, Costs(pass_ns)


def redistribute(times: ModelTimes, ranks: int) -> tuple[int, ...]:
    """Return layers per stage by Redis; the last stage also has the output layer.

    >>> redistribute(ModelTimes(32, 1, 2, 6, 13), 8)
    (4, 4, 4, 5, 5, 5, 5, 0)
    """
    layer = times.forward_ns + times.backward_ns
    output = times.output_forward_ns + times.output_backward_ns
    sizes = partition([layer] * times.layers + [output], place(ranks))
    return (*sizes[:-1], sizes[-1] - 1)


def output_ns(method: str, times: ModelTimes, ranks: int) -> dict[str, int]:
    """Return the time of each vocabulary pass on a rank.

    A backward is half input gradient, half weight gradient; Algorithm 2 has the former in S.
    """
    forward, backward = times.output_forward_ns, times.output_backward_ns
    if method == "naive":
        return {"L": forward // ranks, "E": 0, "G": backward // ranks}
    if method == "alg2":
        early = (2 * forward + backward) // (2 * ranks)
        return {"S": early, "T": (forward + backward) // ranks - early}
    return {"S": forward // ranks, "T": backward // ranks}
