"""V-Half: half the activation memory of 1F1B, the same on every rank; see `block_vhalf`."""

from ..ir.program import Program
from ..ir.registry import register
from .block_vhalf import block_vhalf
from .blocks import Pace, repeat


@register("v-half", "half the activation memory of 1F1B, the same on every rank")
def vhalf(*, ranks: int, microbatches: int) -> Program:
    """V-Half."""
    return repeat(block_vhalf(ranks=ranks, microbatches=microbatches, pace=Pace()))
