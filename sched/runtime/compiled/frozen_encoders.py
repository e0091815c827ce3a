"""Leave out the backward of encoders that nobody trains, and the gradients of their features."""

from collections.abc import Callable
from dataclasses import replace

from ...ir.channels import crossing_results
from ...ir.passes import Pass
from ...ir.program import Program


def without_encoder_backward(
    program: Program, unwanted: Callable[[Pass], bool] | None = None
) -> Program:
    r"""Return the program without EB passes, and without the edges and messages that lead there.

    `unwanted`: which EB passes to leave out, all by default. What they hand down must be unwanted,
    too.

    >>> from counterpoise.sched import parse_program
    >>> text = "placement: 0\nmicrobatches: 1\nedges: 0EF0->0F0 0B0->0EB0\n0: 0EF0 0F0 0B0 0EB0"
    >>> print(without_encoder_backward(parse_program(text)))
    placement: 0
    microbatches: 1
    edges: 0EF0->0F0
    0: 0EF0 0F0  0B0
    """

    def goes(item: Pass) -> bool:
        return is_encoder_backward(item) and (unwanted is None or unwanted(item))

    edges = tuple(edge for edge in program.edges if not any(map(goes, edge)))
    left = replace(program, edges=edges)
    carried = {source for source, _ in crossing_results(left)}

    def stays(item: Pass) -> bool:
        if item.kind.startswith(("SEND_X_", "RECV_X_")):
            return replace(item, kind=item.kind[7:]) in carried
        return not goes(item)

    return replace(left, ranks=tuple(tuple(filter(stays, row)) for row in program.ranks))


def is_encoder_backward(item: Pass) -> bool:
    """Return whether a pass is the backward of an encoder, or of a layer of one."""
    return item.kind == "EB" or item.kind.startswith("EB_")
