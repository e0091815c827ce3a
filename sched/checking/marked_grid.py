"""Print a program's grid with some passes marked, cut to their neighbourhood."""

from collections.abc import Collection

from ..ir.program import Program

_NEAR = 5


def marked_grid(program: Program, marks: Collection[tuple[int, int]]) -> str:
    """Return the grid with each marked (rank, index) in brackets.

    Long rows are cut to the neighbourhood of the marks, or to their beginning without any.

    >>> from counterpoise.sched import schedule
    >>> print(marked_grid(schedule("1f1b", ranks=2, microbatches=2), {(0, 2)}))
    0:  0F0  0F1 [0B0] 0B1
    1:  1F0  1B0  1F1  1B1
    """
    columns = [at for _, at in marks] or [0]
    low, high = max(0, min(columns) - _NEAR), max(columns) + _NEAR + 1
    # Marks may be far apart; show the first ones rather than a grid too wide to read.
    if high - low > 6 * _NEAR:
        high = low + 6 * _NEAR
    width = max((len(str(p)) for row in program.ranks for p in row[low:high]), default=0) + 2
    label = len(str(len(program.ranks) - 1))
    lines = []
    for rank, row in enumerate(program.ranks):
        cells = [
            (f"[{item}]" if (rank, at) in marks else f" {item} ").ljust(width)
            for at, item in enumerate(row[low:high], start=low)
        ]
        before, after = "... " if low else "", " ..." if len(row) > high else ""
        lines.append((f"{rank:>{label}}: {before}" + "".join(cells) + after).rstrip())
    return "\n".join(lines)
