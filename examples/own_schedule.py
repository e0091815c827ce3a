"""A schedule of one's own in ten lines: registered, proved sound, timed beside the others.

Run: python examples/own_schedule.py

Looped breadth-first (Lamy-Poirier, 2023): all microbatches through a chunk before the next one.
Every chunk's parameters are needed once forward and once backward, which suits sharded parameters;
the price is the activations of all microbatches.
"""

from counterpoise.sched import Pass, Program, check, place, register, schedule, simulate, unit_costs


@register("looped-bfs", "all microbatches through a chunk before the next one")
def looped_bfs(*, ranks: int, microbatches: int, chunks: int = 2) -> Program:
    """Return the program; chunk c of rank r is stage c * ranks + r."""
    rows = []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forwards = [Pass(stage, "F", m) for stage in stages for m in range(microbatches)]
        backwards = [Pass(stage, "B", m) for stage in stages[::-1] for m in range(microbatches)]
        rows.append((*forwards, *backwards))
    return Program(tuple(rows), place(ranks, chunks), microbatches, name="looped-bfs")


def main() -> None:
    """Print the grid, and a line for it and two others."""
    print(schedule("looped-bfs", ranks=2, microbatches=4))
    for name in ("looped-bfs", "interleaved", "gpipe"):
        program = schedule(name, ranks=4, microbatches=8)
        check(program)
        chunks = program.stages // 4
        timeline = simulate(program, unit_costs(20 // chunks, 40 // chunks))
        peak = max(timeline.peak_bytes) / chunks
        print(f"{name}: bubble {timeline.bubble_ratio:.1%}, {peak:g} microbatches held")


if __name__ == "__main__":
    main()
