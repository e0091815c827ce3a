"""Interleaved 1F1B: every rank holds several distant chunks of the model.

2 ranks, 2 chunks (stages 0 and 2 on rank 0), 4 microbatches, backward as long as forward:

    0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ... 2B2 ... 2B3 0B2 0B3
    1: ... 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 ...

Microbatches go through the chunks in rounds of one microbatch per rank. A rank first runs
2(p - 1 - r) forwards and a round for every chunk but the last, then alternates forwards and
backwards. The bubble is 1/chunks of that of 1F1B. Narayanan et al., 2021; the order is that of
Megatron-LM and torch.

The warm-up can be shorter: `warmup="reduced"` runs (p - 1 - r) ahead instead of 2(p - 1 - r), the
fewest with which the first backward finds its forwards done (Optimus, 2025, Figure 12). If
transfers take no time and all passes take the same time, the makespan does not change. There are
fewer activations, and the later microbatches enter later, which leaves room for encoder passes.
"""

from collections.abc import Sequence

from ..ir.program import Pass, Program, place
from ..ir.registry import register
from .one_f_one_b import Order, alternating


@register("interleaved", "interleaved 1F1B over several chunks a rank (Megatron-LM)")
def interleaved(
    *,
    ranks: int,
    microbatches: int,
    chunks: int = 2,
    warmup: str = "megatron",
    extra_warmup: int = 0,
) -> Program:
    """Return interleaved 1F1B's program.

    `warmup`: "megatron" or "reduced". `extra_warmup`: the number of forwards to add to it.

    Raises ValueError for fewer than one chunk, an unknown warm-up, or microbatches that do not
    divide into equal rounds (of at least `ranks`, unless there are fewer).
    """
    if warmup not in ("megatron", "reduced"):
        raise ValueError(f"unknown warmup {warmup!r}; give 'megatron' or 'reduced'")
    if extra_warmup < 0:
        raise ValueError(f"extra_warmup is {extra_warmup}; give 0 or more forwards")
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        low = microbatches // ranks * ranks
        raise ValueError(
            f"interleaved needs microbatches in rounds of {ranks} ranks, "
            f"got {microbatches}; use {low} or {low + ranks}"
        )
    size = microbatches // rounds
    placement = place(ranks, chunks)
    ahead = 2 if warmup == "megatron" else 1
    rows = tuple(
        alternating(
            chunked_order(range(rank, ranks * chunks, ranks), size),
            (chunks - 1) * size + ahead * (ranks - 1 - rank) + extra_warmup,
            microbatches * chunks,
        )
        for rank in range(ranks)
    )
    return Program(rows, placement, microbatches, name="interleaved")


def chunked_order(stages: Sequence[int], size: int) -> Order:
    """Return the order of a rank with these stages: a round of `size` microbatches, chunk by chunk.

    Backwards go through the chunks from the last one.
    """
    by_kind = {"F": tuple(stages), "B": tuple(reversed(stages))}
    length = size * len(stages)

    def nth(kind: str, step: int) -> Pass:
        around, within = divmod(step, length)
        chunk, offset = divmod(within, size)
        return Pass(by_kind[kind][chunk], kind, around * size + offset)

    return nth
