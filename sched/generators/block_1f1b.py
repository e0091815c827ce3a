"""1F1B and interleaved 1F1B as building blocks.

A rank's time is divided into slots of forward, backward, output. Slot n of rank r begins at
s_r + n * interval; the n-th forward is in slot n, the n-th backward in slot n + d_r, where d_r is
the rank's warm-up. With one chunk the pattern is Figure 9 of the vocabulary-parallelism paper:

    F_r(i) = r f + i I        B_r(i) = p f + k I + (p - 1 - r)(b + o) + i I       I = f + b + o

With Megatron's warm-up of several chunks, twice as long, a rank is a whole slot ahead of the next
rank. It has to be, because rank 0 runs a microbatch's next chunk p slots after the previous one.
"""

from collections.abc import Callable

from ..ir.program import Pass, Program
from .blocks import BuildingBlock, Pace, Timed
from .interleaved import interleaved
from .one_f_one_b import one_forward_one_backward

Slot = Callable[[Pass], int]


def block_1f1b(*, ranks: int, microbatches: int, pace: Pace) -> BuildingBlock:
    """Return 1F1B's block; F and B are in the order of `schedule("1f1b", extra_warmup=delay)`."""
    program = one_forward_one_backward(
        ranks=ranks, microbatches=microbatches, extra_warmup=pace.delay
    )

    def slot(item: Pass) -> int:
        warmup = ranks - 1 - item.stage + pace.delay
        return item.microbatch + (warmup if item.kind == "B" else 0)

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

    def slot(item: Pass) -> int:
        chunk, rank = divmod(item.stage, ranks)
        around, offset = divmod(item.microbatch, size)
        begin = around * span * chunks + offset
        if item.kind == "F":
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
    last, every = program.stages - 1, range(program.microbatches)

    def at(item: Pass) -> int:
        inside = pace.forward if item.kind == "B" else 0
        return program.placement[item.stage] * shift + slot(item) * interval + inside

    def place(times: list[int]) -> tuple[tuple[int, ...], ...]:
        """Return for each rank the first free time for other passes from each of these times on."""
        # A slot's free time begins after its forward and backward.
        begins = [rank * shift + room for rank in range(len(program.ranks))]
        return tuple(
            tuple(begin + -(-(time - begin) // interval) * interval for time in times)
            for begin in begins
        )

    rows: list[tuple[Timed, ...]] = [
        tuple((at(item), 2, item) for item in row) for row in program.ranks
    ]
    return BuildingBlock(
        name=program.name,
        placement=program.placement,
        microbatches=program.microbatches,
        rows=tuple(rows),
        output_at=place([at(Pass(last, "F", m)) + pace.forward for m in every]),
        input_at=place([at(Pass(0, "F", m)) - 2 * interval for m in every]),
        gradient_at=place([at(Pass(0, "B", m)) + pace.backward + interval for m in every]),
        step=interval,
    )
