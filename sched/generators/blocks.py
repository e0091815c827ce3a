"""Building blocks: schedules made by repeating the pattern of one microbatch.

A block gives the nominal times at which the passes of a microbatch run in an ideal steady state.
The program repeats it and sorts each rank's passes by nominal time; the simulator then runs that
order eagerly. The advantage: another kind of pass is put into the pattern once, at a time when its
inputs are ready, and is then placed for all microbatches. Its memory is known beforehand: a pattern
stretched by k intervals between the last stage's forward and backward holds k microbatches more (Qi
et al., 2024; "Balancing pipeline parallelism with vocabulary parallelism", 2025, section 5.2). A
greedy placement is 9 to 16 % slower.

A block has times for output-layer passes on each rank, `output_at`, after the last stage's forward,
and `input_at` and `gradient_at` for those of the input layer. They differ by rank, because the
ranks' patterns are shifted against each other.

In the blocks of 1F1B a rank's time is divided into slots of forward, backward, output. Slot n of
rank r begins at s_r + n * interval; the n-th forward is in slot n, the n-th backward in slot n +
d_r, where d_r is the rank's warm-up. With one chunk the pattern is that paper's Figure 9:

    F_r(i) = r f + i I        B_r(i) = p f + k I + (p - 1 - r)(b + o) + i I       I = f + b + o

With Megatron's warm-up of several chunks, twice as long, a rank is a whole slot ahead of the next
rank. It has to be, because rank 0 runs a microbatch's next chunk p slots after the previous one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..ir.program import Barrier, Pass, Program
from .interleaved import interleaved
from .one_f_one_b import one_forward_one_backward

Timed = tuple[int, int, Pass]
Slot = Callable[[Pass], int]


@dataclass(frozen=True, slots=True)
class Pace:
    """The nominal times for which a pattern is made.

    `forward`, `backward`: of a chunk's pass. `output`: of all vocabulary passes of a microbatch on
    one rank. `delay`: the number of intervals between the last stage's forward and backward.
    """

    forward: int = 1
    backward: int = 2
    output: int = 0
    delay: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError unless forward and backward take time and nothing is negative."""
        if min(self.forward, self.backward) < 1 or min(self.output, self.delay) < 0:
            raise ValueError(
                f"{self}: give a forward and a backward of 1 or more, and the others of 0 or more"
            )


@dataclass(frozen=True, slots=True)
class BuildingBlock:
    """A pattern, repeated for all microbatches.

    `rows[r]`: rank r's (nominal time, tie, pass), in any order; ties are sorted by the second.
    `output_at[r][m]`, `input_at[r][m]`, `gradient_at[r][m]`: the times at which passes of the
    vocabulary layers fit for microbatch m. `output_at` is right after the last stage's forward;
    later passes of the output layer follow at distances of `step`.
    """

    name: str
    placement: tuple[int, ...]
    microbatches: int
    rows: tuple[tuple[Timed, ...], ...]
    output_at: tuple[tuple[int, ...], ...]
    input_at: tuple[tuple[int, ...], ...]
    gradient_at: tuple[tuple[int, ...], ...]
    step: int
    barriers: tuple[Barrier, ...] = field(default=())


def repeat(block: BuildingBlock) -> Program:
    """Return the program of a block: each rank's passes in the order of their nominal times."""
    rows = tuple(tuple(pass_ for _, _, pass_ in sorted(row)) for row in block.rows)
    return Program(rows, block.placement, block.microbatches, block.barriers, block.name)


def block_1f1b(*, ranks: int, microbatches: int, pace: Pace) -> BuildingBlock:
    """Return 1F1B's block; F and B are in the order of `schedule("1f1b", extra_warmup=delay)`."""
    program = one_forward_one_backward(
        ranks=ranks, microbatches=microbatches, extra_warmup=pace.delay
    )

    def slot(pass_: Pass) -> int:
        warmup = ranks - 1 - pass_.stage + pace.delay
        return pass_.microbatch + (warmup if pass_.kind == "B" else 0)

    return _block(program, pace, slot, pace.forward)


def block_interleaved(
    *, ranks: int, microbatches: int, pace: Pace, chunks: int = 2, warmup: str = "megatron"
) -> BuildingBlock:
    """Return interleaved 1F1B's block, with either warm-up."""
    program = interleaved(
        ranks=ranks,
        microbatches=microbatches,
        chunks=chunks,
        warmup=warmup,
        extra_warmup=pace.delay,
    )
    size = microbatches // max(1, microbatches // ranks)
    span = max(size, ranks)  # fewer microbatches than ranks leave slots empty
    ahead = 2 if warmup == "megatron" else 1

    def slot(pass_: Pass) -> int:
        chunk, rank = divmod(pass_.stage, ranks)
        around, offset = divmod(pass_.microbatch, size)
        begin = around * span * chunks + offset
        if pass_.kind == "F":
            return begin + chunk * span
        first = (chunks - 1) * span + ahead * (ranks - 1 - rank) + pace.delay
        return first + begin + (chunks - 1 - chunk) * span

    interval = pace.forward + pace.backward + pace.output
    return _block(program, pace, slot, interval if ahead == 2 else pace.forward)


def _block(program: Program, pace: Pace, slot: Slot, shift: int) -> BuildingBlock:
    """Return the block of a program.

    `slot`: the slot of a pass. `shift`: the time from a rank's slots to those of the next rank.
    """
    interval = pace.forward + pace.backward + pace.output
    room = pace.forward + pace.backward
    last, microbatches = program.stages - 1, range(program.microbatches)

    def at(pass_: Pass) -> int:
        inside = pace.forward if pass_.kind == "B" else 0
        return program.placement[pass_.stage] * shift + slot(pass_) * interval + inside

    def place(times: list[int]) -> tuple[tuple[int, ...], ...]:
        """Return for each rank the first free time for other passes from each of these times on."""
        # A slot's free time begins after its forward and backward.
        begins = [rank * shift + room for rank in range(len(program.ranks))]
        return tuple(
            tuple(begin + -(-(time - begin) // interval) * interval for time in times)
            for begin in begins
        )

    rows: list[tuple[Timed, ...]] = [
        tuple((at(pass_), 2, pass_) for pass_ in row) for row in program.ranks
    ]
    return BuildingBlock(
        name=program.name,
        placement=program.placement,
        microbatches=program.microbatches,
        rows=tuple(rows),
        output_at=place([at(Pass(last, "F", m)) + pace.forward for m in microbatches]),
        input_at=place([at(Pass(0, "F", m)) - 2 * interval for m in microbatches]),
        gradient_at=place([at(Pass(0, "B", m)) + pace.backward + interval for m in microbatches]),
        step=interval,
    )
