"""Vocabulary parallelism: output and input layers divided over all ranks, as extra passes.

With the vocabulary on the last stage (and the embedding on the first) these stages are the
pipeline's slowest. Divided over the vocabulary, every rank does 1/p of it, but the softmax needs
sums over all ranks, and each such barrier between a microbatch's last forward and first backward
keeps it in memory one interval longer. The forms, with their passes and barriers:

    naive  L | E | G |      logits; their maximum | exponentials, sum | gradients, reduce |
    alg1   S | T |          local softmax; maximum and sum | gradients, reduce |
    alg2   S |  T           also the gradients before the barrier; T has the weights' only and waits

all after CX, the broadcast of the last stage's output. 1F1B holds p microbatches, these hold
p + 3, p + 2 and p + 1. "Balancing pipeline parallelism with vocabulary parallelism", 2025.

A pattern sorts passes by the times for which it is made (`Pace`), and no single rule is best for
all: `vocabulary` makes the patterns of a few and keeps the one whose step is the shortest.

With `inputs`, IF looks up each rank's part of the embedding, the parts are summed for stage 0
(CI), and the gradient of stage 0's input goes to all ranks (CJ) for IB.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..ir.program import Barrier, Pass, Program, Where
from ..ir.registry import Generator, register
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from .blocks import BuildingBlock, Pace, Timed, block_1f1b, block_interleaved, repeat
from .v_half import block_v_half

_LAST: tuple[tuple[Where, str], ...] = (("last", "B"), ("last", "I"))


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the output layer.

    `passes`: kinds in order, each one interval after the previous one. `delay`: intervals kept
    free between the last stage's forward and its backward. `thirds`: of the output layer's
    operations (logits, input gradients, weight gradients), how many each pass has.
    """

    name: str
    passes: tuple[str, ...]
    delay: int
    thirds: tuple[int, ...]
    barriers: tuple[Barrier, ...]


NAIVE = Form(
    "naive",
    ("L", "E", "G"),
    3,
    (1, 0, 2),
    (
        Barrier("CX", "F", "last", (("every", "L"),)),
        Barrier("CM", "L", "every", (("every", "E"),)),
        Barrier("CS", "E", "every", (("every", "G"),)),
        Barrier("CG", "G", "every", _LAST),
    ),
)
ALGORITHM_1 = Form(
    "alg1",
    ("S", "T"),
    2,
    (1, 2),
    (
        Barrier("CX", "F", "last", (("every", "S"),)),
        Barrier("CS", "S", "every", (("every", "T"),)),
        Barrier("CG", "T", "every", _LAST),
    ),
)
ALGORITHM_2 = Form(
    "alg2",
    ("S", "T"),
    1,
    (2, 1),
    (
        Barrier("CX", "F", "last", (("every", "S"),)),
        Barrier("CS", "S", "every", (("every", "T"),)),
        Barrier("CG", "CS", "barrier", _LAST),
    ),
)
FORMS = {form.name: form for form in (NAIVE, ALGORITHM_1, ALGORITHM_2)}
# Table 3 of the paper: how fast a rank's part of the output layer is beside 1/p of the whole, for
# 2,048 tokens and, in the second row, 4,096, by number of GPUs. "input": the embedding's.
PAPER_SCALING: dict[int, dict[int, dict[str, float]]] = {
    2048: {
        8: {"alg1": 0.9129, "alg2": 0.8672, "input": 0.3999},
        16: {"alg1": 0.8422, "alg2": 0.7984, "input": 0.2885},
        32: {"alg1": 0.8059, "alg2": 0.7593, "input": 0.1518},
    },
    4096: {
        8: {"alg1": 0.9321, "alg2": 0.8836, "input": 0.2769},
        16: {"alg1": 0.8802, "alg2": 0.8342, "input": 0.1552},
        32: {"alg1": 0.8524, "alg2": 0.7966, "input": 0.0835},
    },
}
BLOCKS: dict[str, Callable[..., BuildingBlock]] = {
    "1f1b": block_1f1b,
    "interleaved": block_interleaved,
    "v-half": block_v_half,
}
INPUT_BARRIERS = (
    Barrier("CI", "IF", "every", (("first", "F"),)),
    Barrier("CJ", "B", "first", (("every", "IB"),)),
)


def vocabulary(
    base: str,
    form: str,
    *,
    ranks: int,
    microbatches: int,
    pace: Pace | None = None,
    inputs: bool = False,
    **options: int | str,
) -> Program:
    """Return the program of a schedule built from blocks, with vocabulary passes.

    Args:
        base: "1f1b", "interleaved" or "v-half".
        form: Of the output layer: "naive", "alg1" or "alg2".
        ranks: Their number in the pipeline.
        microbatches: Their number in a step.
        pace: The times of passes, its delay set by the form; of several patterns 1F1B's is the one
            of the shortest step at these times. Default: a backward of two forwards.
        inputs: True for passes of the input layer, too; default False.
        options: Of the schedule, such as chunks.

    Raises ValueError for other names.

    >>> program = vocabulary("1f1b", "alg1", ranks=2, microbatches=3)
    >>> print(*program.ranks[1])
    1F0 1S0 1F1 1T0 1S1 1F2 1B0 1T1 1S2 1B1 1T2 1B2
    """
    if base not in BLOCKS:
        raise ValueError(f"{base!r} is not built from blocks; those are {', '.join(BLOCKS)}")
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r} of the output layer; give {', '.join(FORMS)}")
    chosen = FORMS[form]

    def build(pace: Pace, count: int) -> Program:
        pace = replace(pace, delay=chosen.delay)
        block = with_output(
            BLOCKS[base](ranks=ranks, microbatches=count, pace=pace, **options), chosen
        )
        return repeat(with_inputs(block) if inputs else block)

    if pace is None or base != "1f1b":
        # In the other blocks no pace changes the order.
        return build(pace or _PACE, microbatches)
    costs = _costs(pace, chosen)
    # Few microbatches show which pattern is the best: it repeats.
    count = min(microbatches, 4 * ranks)
    best = min(_paces(pace), key=lambda trial: simulate(build(trial, count), costs).makespan_ns)
    return build(best, microbatches)


_PACE = Pace(10, 20, 4)


def _paces(pace: Pace) -> tuple[Pace, ...]:
    """Return the paces whose patterns are tried for one.

    Its own is best only for a backward of about two forwards. Less time for the output puts its
    passes earlier, which a rank that waits for them gains by; the last two suit the rest.
    """
    forward, backward, output = pace.forward, pace.backward, pace.output
    shorter = [Pace(forward, backward, part) for part in (output, output // 2, 0)]
    return (*shorter, Pace(1, 1, 1), _PACE)


def _costs(pace: Pace, form: Form) -> Costs:
    """Return the costs of a pace's passes, the output's shared out by operations."""
    output = zip(form.passes, form.thirds, strict=True)
    inputs = dict.fromkeys(("IF", "IB"), 0)
    # In threes, so that thirds are whole.
    passes = {"F": 3 * pace.forward, "B": 3 * pace.backward} | inputs
    return Costs(passes | {kind: pace.output * thirds for kind, thirds in output})


def output_form(program: Program) -> str:
    """Return a program's form of the output layer, "interlaced", or "" if it has none.

    >>> output_form(vocabulary("1f1b", "alg1", ranks=2, microbatches=3))
    'alg1'
    """
    if any(barrier.blocking for barrier in program.barriers):
        return "interlaced"
    used = set(program.barriers) - set(INPUT_BARRIERS)
    return next((name for name, form in FORMS.items() if used and used >= set(form.barriers)), "")


def with_output(block: BuildingBlock, form: Form) -> BuildingBlock:
    """Return the block with the passes and barriers of an output layer."""

    def added(rank: int) -> list[Timed]:
        return [
            (at + nth * block.step, -nth, Pass(rank, kind, m))
            for nth, kind in enumerate(form.passes)
            for m, at in enumerate(block.output_at[rank])
        ]

    rows = tuple((*row, *added(rank)) for rank, row in enumerate(block.rows))
    barriers = block.barriers + form.barriers
    return replace(block, rows=rows, barriers=barriers, name=f"{block.name}-{form.name}")


def with_inputs(block: BuildingBlock) -> BuildingBlock:
    """Return the block with the passes and barriers of an input embedding."""
    kinds = {pass_.kind for row in block.rows for _, _, pass_ in row}
    backward = "I" if "I" in kinds else "B"
    rows = tuple(
        (
            *row,
            *((at, -9, Pass(rank, "IF", m)) for m, at in enumerate(block.input_at[rank])),
            *((at, 9, Pass(rank, "IB", m)) for m, at in enumerate(block.gradient_at[rank])),
        )
        for rank, row in enumerate(block.rows)
    )
    barriers = (INPUT_BARRIERS[0], replace(INPUT_BARRIERS[1], after=backward))
    return replace(block, rows=rows, barriers=block.barriers + barriers)


def _register(base: str, form: Form) -> None:
    """Register a form of the output layer on a schedule under a name such as `1f1b-alg1`."""
    generate = partial(vocabulary, base, form.name)

    def plain(*, ranks: int, microbatches: int, inputs: bool = False) -> Program:
        return generate(ranks=ranks, microbatches=microbatches, inputs=inputs)

    def chunked(*, ranks: int, microbatches: int, inputs: bool = False, chunks: int = 2) -> Program:
        return generate(ranks=ranks, microbatches=microbatches, inputs=inputs, chunks=chunks)

    def paced(
        *, ranks: int, microbatches: int, inputs: bool = False,
        forward: int = 0, backward: int = 0, output: int = 0,
    ) -> Program:  # fmt: skip
        pace = Pace(forward, backward, output) if forward or backward or output else None
        return generate(ranks=ranks, microbatches=microbatches, pace=pace, inputs=inputs)

    text = f"{base} with the output layer over all ranks, {len(form.barriers) - 1} barriers"
    # Algorithm 2's second collective is not waited for between passes: one barrier is left.
    text = text if form is not ALGORITHM_2 else text.replace("2 barriers", "1 barrier")
    generators: dict[str, Generator] = {"1f1b": paced, "interleaved": chunked, "v-half": plain}
    register(f"{base}-{form.name}", text)(generators[base])


for _base in BLOCKS:
    for _form in FORMS.values():
        _register(_base, _form)
