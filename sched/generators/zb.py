"""Zero bubble schedules: the backward is split into I (input gradient) and W (weight gradient).

The previous stage needs only I, so W can wait and fill idle time. ZB-H1, 4 ranks, 6 microbatches,
all passes of the same time:

    0: F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
    1: .. F0 F1 F2 .. .. I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
    2: .. .. F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
    3: .. .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5

On rank r each W comes r microbatches after its I. A rank holds p activations at most, as in 1F1B,
and has a third of its bubble. ZB-H2 runs twice as far ahead, 2(p - 1 - r) + 1 forwards, and each W
comes 2r microbatches later: it holds up to 2p - 1 activations and is idle only before a rank's
first and after its last pass. Qi et al., 2023.
"""

from ..ir.program import Pass, Program, place
from ..ir.registry import register


@register("zb-h1", "zero bubble with the memory of 1F1B")
def zb_h1(*, ranks: int, microbatches: int) -> Program:
    """Return ZB-H1's program."""
    return _zero_bubble("zb-h1", ranks, microbatches, 1)


@register("zb-h2", "zero bubble with twice the memory of 1F1B")
def zb_h2(*, ranks: int, microbatches: int) -> Program:
    """Return ZB-H2's program."""
    return _zero_bubble("zb-h2", ranks, microbatches, 2)


def _zero_bubble(name: str, ranks: int, microbatches: int, reach: int) -> Program:
    rows = tuple(
        _row(rank, reach * (ranks - 1 - rank) + 1, reach * rank, microbatches)
        for rank in range(ranks)
    )
    return Program(rows, place(ranks), microbatches, name=name)


def _row(stage: int, warmup: int, behind: int, microbatches: int) -> tuple[Pass, ...]:
    """Return `warmup` forwards, then in turn I, the W of `behind` microbatches ago, the next F."""
    row = [Pass(stage, "F", m) for m in range(min(warmup, microbatches))]
    for m in range(microbatches):
        row.append(Pass(stage, "I", m))
        if m >= behind:
            row.append(Pass(stage, "W", m - behind))
        if m + warmup < microbatches:
            row.append(Pass(stage, "F", m + warmup))
    row += [Pass(stage, "W", m) for m in range(max(0, microbatches - behind), microbatches)]
    return tuple(row)
