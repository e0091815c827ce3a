"""1F1B and interleaved 1F1B as a block.

A rank's time goes in slots of forward, backward, output: slot n of rank r begins at
s_r + n * interval and holds the rank's n-th forward and its (n - d_r)-th backward, where d_r is its
warm-up. Since slot n + 1 of rank r begins before slot n of rank r + p ends, the pattern has no
gaps; with one chunk it is Figure 9 of the vocabulary-parallelism paper:

    F_r(i) = r f + i I        B_r(i) = p f + k I + (p - 1 - r)(b + o) + i I       I = f + b + o
"""

from .blocks import Block, Pace, Timed
from .gen_1f1b import one_forward_one_backward
from .gen_interleaved import interleaved
from .passes import Pass


def block_1f1b(*, ranks: int, microbatches: int, pace: Pace) -> Block:
    """1F1B; the order of the rank's F and B is that of `schedule("1f1b", extra_warmup=delay)`."""
    program = one_forward_one_backward(
        ranks=ranks, microbatches=microbatches, extra_warmup=pace.delay
    )
    return _block(program.ranks, program.placement, microbatches, pace, 0, "1f1b")


def block_interleaved(
    *, ranks: int, microbatches: int, pace: Pace, chunks: int = 2, warmup: str = "megatron"
) -> Block:
    """Interleaved 1F1B, with either warm-up."""
    program = interleaved(
        ranks=ranks,
        microbatches=microbatches,
        chunks=chunks,
        warmup=warmup,
        extra_warmup=pace.delay,
    )
    early = 1 if warmup == "megatron" else 0
    return _block(program.ranks, program.placement, microbatches, pace, early, "interleaved")


def _block(
    rows: tuple[tuple[Pass, ...], ...],
    placement: tuple[int, ...],
    microbatches: int,
    pace: Pace,
    early: int,
    name: str,
) -> Block:
    """`early`: 1 if a rank is ahead of the next one by a whole slot, not by a forward only.

    Megatron's warm-up is twice as long, which leaves room for that, and its chunks follow so
    closely that it must be so: rank 0 runs a microbatch's next chunk p slots later.
    """
    ranks, last = len(rows), len(placement) - 1
    interval = pace.forward + pace.backward + pace.output
    timed = []
    for rank, row in enumerate(rows):
        begin = rank * pace.forward - early * (ranks - 1 - rank) * (interval - pace.forward)
        timed.append(_slots(row, begin, interval, pace.forward))
    at = {item: when for row in timed for when, _, item in row}
    starts = [at[row[0]] for row in rows]
    every = range(microbatches)
    done = [at[Pass(last, "F", m)] + pace.forward for m in every]
    first = [at[Pass(0, "F", m)] - interval for m in every]
    final = [at[Pass(0, "B", m)] + pace.backward for m in every]
    room = pace.forward + pace.backward

    def place(rank: int, times: list[int]) -> tuple[int, ...]:
        """For each time, the first place for other passes from then on."""
        begin = starts[rank] + room
        return tuple(begin + -(-(t - begin) // interval) * interval for t in times)

    return Block(
        name=name,
        placement=placement,
        microbatches=microbatches,
        rows=tuple(timed),
        output_at=tuple(place(rank, done) for rank in range(ranks)),
        input_at=tuple(place(rank, [t - interval for t in first]) for rank in range(ranks)),
        gradient_at=tuple(place(rank, final) for rank in range(ranks)),
        step=interval,
    )


def _slots(row: tuple[Pass, ...], begin: int, interval: int, forward: int) -> tuple[Timed, ...]:
    kinds = [item.kind for item in row]
    warmup = kinds.index("B") - 1
    seen = {"F": 0, "B": warmup}
    timed = []
    for item in row:
        when = begin + seen[item.kind] * interval + (forward if item.kind == "B" else 0)
        timed.append((when, 2, item))
        seen[item.kind] += 1
    return tuple(timed)
