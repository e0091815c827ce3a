"""V-Half: half the activation memory of 1F1B, the same on every rank, built from a block.

Rank r holds stages r and 2p - 1 - r. In units of a pass (F, I and W alike) a microbatch's passes on
rank r start at

    F, chunk 0   2r
    F, chunk 1   3p - r - 2
    I, chunk 1   3p + v + 2r - 1
    I, chunk 0   6p + v - r - 2            v = 3 for even p, 0 for odd p

and repeat every 6 units, which leaves two units for the two W. From F to I a microbatch's two
chunks take 6p + 2v - 1 units together, so a rank holds about p chunks, where 1F1B holds 2p (Qi et
al., 2024; offsets as in the authors' zbv_greedy.py). Vocabulary passes pause all ranks at once: a
pause shifts everything after it by the same time, so no pass is delayed relative to the others.
"""

from ..ir.program import Pass, Program, place
from ..ir.registry import register
from .blocks import BuildingBlock, Pace, Timed, repeat

_UNITS = 6
# From the last stage's forward to the output layer: time for the broadcast. This leaves the
# barriers after it two units where the pattern is tightest (Algorithm 2, odd p).
_ROOM = 4


@register("v-half", "half the activation memory of 1F1B, the same on every rank")
def v_half(*, ranks: int, microbatches: int) -> Program:
    """Return V-Half's program."""
    return repeat(block_v_half(ranks=ranks, microbatches=microbatches, pace=Pace()))


def block_v_half(*, ranks: int, microbatches: int, pace: Pace) -> BuildingBlock:
    """Return V-Half's block, with times in quarters of a unit to leave room between passes."""
    timed, starts = [], []
    for rank in range(ranks):
        offsets = _offsets(rank, ranks, pace.delay)
        row: list[Timed] = []
        for m in range(microbatches):
            row += [(4 * (at + m * _UNITS), 2, Pass(s, kind, m)) for s, kind, at in offsets]
        timed.append(tuple(row))
        starts.append({(s, kind): at for s, kind, at in offsets})
    done = starts[0][2 * ranks - 1, "F"] + 1 + _ROOM
    first = starts[0][0, "F"] - 2 * _UNITS
    final = starts[0][0, "I"] + 1 + _UNITS
    places = [
        tuple(4 * (at + m * _UNITS) - 2 for m in range(microbatches)) for at in (done, first, final)
    ]
    return BuildingBlock(
        name="v-half",
        placement=place(ranks, 2, "v"),
        microbatches=microbatches,
        rows=tuple(timed),
        output_at=(places[0],) * ranks,
        input_at=(places[1],) * ranks,
        gradient_at=(places[2],) * ranks,
        step=4 * _UNITS,
    )


def _offsets(rank: int, ranks: int, delay: int) -> list[tuple[int, str, int]]:
    """Return (stage, kind, unit) of microbatch 0: the four offsets, each W in a free unit."""
    outer, inner = rank, 2 * ranks - 1 - rank
    shift = (3 if ranks % 2 == 0 else 0) + _UNITS * delay
    offsets = [
        (outer, "F", 2 * rank),
        (inner, "F", 3 * ranks - rank - 2),
        (inner, "I", 3 * ranks + shift + 2 * rank - 1),
        (outer, "I", 6 * ranks + shift - rank - 2),
    ]
    taken = {at % _UNITS for _, _, at in offsets}
    for stage, _, at in offsets[2:]:
        late = next(n for n in range(at + 1, at + _UNITS) if n % _UNITS not in taken)
        taken.add(late % _UNITS)
        offsets.append((stage, "W", late))
    return offsets
