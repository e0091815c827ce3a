"""Building blocks: schedules made by repeating the pattern of one microbatch.

A block gives the nominal times at which the passes of a microbatch run in an ideal steady state.
The program repeats it and sorts each rank's passes by nominal time; the simulator then runs that
order eagerly. The advantage: another kind of pass is put into the pattern once, at a time when its
inputs are ready, and is then placed for all microbatches. Its memory is known beforehand: a pattern
stretched by k intervals between the last stage's forward and backward holds k microbatches more (Qi
et al., 2024; "Balancing pipeline parallelism with vocabulary parallelism", 2024, section 5.2). A
greedy placement is 9 to 16 % slower.

A block has times for output-layer passes on each rank, `output_at`, after the last stage's forward,
and `input_at` and `gradient_at` for those of the input layer. They differ by rank, because the
ranks' patterns are shifted against each other.
"""

from dataclasses import dataclass, field

from ..ir.program import Barrier, Pass, Program

Timed = tuple[int, int, Pass]


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
    rows = tuple(tuple(item for _, _, item in sorted(row)) for row in block.rows)
    return Program(rows, block.placement, block.microbatches, block.barriers, block.name)
