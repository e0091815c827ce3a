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

In the blocks of 1F1B a rank's time is divided into slots of forward, backward, output. Slot n holds
the n-th forward, and the backward that is the rank's warm-up before the n-th. With one chunk it is
Figure 9 of the 2025 paper (rank r of p, microbatch i; a pass takes f, b or o; the delay is k):

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
    round_size = microbatches // max(1, microbatches // ranks)
    round_slots = max(round_size, ranks)  # fewer microbatches than ranks leave slots empty
    slots_ahead = 2 if warmup == "megatron" else 1

    def slot(pass_: Pass) -> int:
        chunk, rank = divmod(pass_.stage, ranks)
        round_index, offset = divmod(pass_.microbatch, round_size)
        first_chunk = round_index * round_slots * chunks + offset
        if pass_.kind == "F":
            return first_chunk + chunk * round_slots
        warmup_slots = (chunks - 1) * round_slots + slots_ahead * (ranks - 1 - rank) + pace.delay
        return warmup_slots + first_chunk + (chunks - 1 - chunk) * round_slots

    interval = pace.forward + pace.backward + pace.output
    return _block(program, pace, slot, interval if slots_ahead == 2 else pace.forward)


def _block(program: Program, pace: Pace, slot: Slot, shift: int) -> BuildingBlock:
    """Return a program's block; `shift`: the time from a rank's slots to those of the next rank."""
    interval = pace.forward + pace.backward + pace.output

    def find_time(pass_: Pass) -> int:
        offset = pace.forward if pass_.kind == "B" else 0
        return program.placement[pass_.stage] * shift + slot(pass_) * interval + offset

    def fit(stage: int, kind: str, delay: int) -> tuple[tuple[int, ...], ...]:
        """Return by rank and microbatch the first free time from `delay` after a pass' start on."""
        times = [find_time(Pass(stage, kind, m)) + delay for m in range(program.microbatches)]
        # A slot's free time begins after its forward and backward.
        begins = [rank * shift + pace.forward + pace.backward for rank in range(len(program.ranks))]
        return tuple(
            tuple(begin + -(-(time - begin) // interval) * interval for time in times)
            for begin in begins
        )

    # The tie: at one time F and B come after IF (-9) and the output's (0 and less), before IB (9).
    rows: list[tuple[Timed, ...]] = [
        tuple((find_time(pass_), 2, pass_) for pass_ in row) for row in program.ranks
    ]
    return BuildingBlock(
        name=program.name,
        placement=program.placement,
        microbatches=program.microbatches,
        rows=tuple(rows),
        output_at=fit(program.stages - 1, "F", pace.forward),
        # What fits is less than an interval later, so that one or more are left before the F.
        input_at=fit(0, "F", -2 * interval),
        gradient_at=fit(0, "B", pace.backward + interval),
        step=interval,
    )
