"""A fast evaluator of 1F1B and interleaved 1F1B, the oracle of the ordering search.

It knows only these two schedules. Any function from an order to nanoseconds, such as the
simulator of `counterpoise.sched`, can be used in its place.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..kernels import loops
from ..kernels.arrays import Int64

# (backward, stage, place): one operation of a rank
Operation = tuple[bool, int, int]


@dataclass(frozen=True, slots=True)
class PipelineEvaluator:
    """A pipeline program and the costs of its passes; call it with an order to get the makespan.

    costs: int64 (2 x stages, microbatches) nanoseconds: forward of every stage, then backward.
    The arrays rank, after, row, place (operations,) are explained in kernels/pipeline.py.
    """

    ranks: int
    stages: int
    costs: Int64
    rank: Int64
    after: Int64
    row: Int64
    place: Int64

    @staticmethod
    def one_forward_one_backward(
        ranks: int, forward: Int64, backward: Int64 | None = None
    ) -> "PipelineEvaluator":
        """Return the 1F1B pipeline of `ranks` ranks.

        forward and backward: int64 (ranks x chunks, microbatches) nanoseconds, rows by stage;
        more rows than ranks make it interleaved (Megatron-LM's), which needs microbatches in
        multiples of ranks. Without backward it is twice the forward. Raises ValueError.

        >>> ones = np.ones((2, 3), dtype=np.int64)
        >>> PipelineEvaluator.one_forward_one_backward(2, ones)(np.arange(3))
        12
        """
        stages, microbatches = forward.shape
        if ranks < 1 or stages % ranks:
            raise ValueError(f"{stages} stages do not divide over {ranks} ranks; use a multiple")
        if stages > ranks and microbatches % ranks:
            raise ValueError(
                f"interleaved 1F1B needs microbatches in multiples of {ranks} ranks, "
                f"got {microbatches}; use {microbatches // ranks * ranks + ranks}"
            )
        behind = 2 * forward if backward is None else backward
        costs = np.ascontiguousarray(np.concatenate([forward, behind])).astype(np.int64)
        programs = [_program(r, ranks, stages // ranks, microbatches) for r in range(ranks)]
        return PipelineEvaluator(ranks, stages, costs, *_flat(programs, stages, microbatches))

    def __call__(self, order: Int64) -> int:
        """Return the makespan in nanoseconds when microbatch order[k] runs k-th."""
        return self.finish(order)[1]

    def finish(self, order: Int64) -> tuple[Int64, int]:
        """Return the end time of every operation, and the makespan."""
        ends = np.zeros(len(self.rank), dtype=np.int64)
        order = np.ascontiguousarray(order, dtype=np.int64)
        return ends, loops.run(self.rank, self.after, self.row, self.place, self.costs, order, ends)

    def two_opt(self, order: Int64, most: int) -> Int64:
        """Return the order after compiled 2-opt; at most `most` makespans are computed."""
        improved = np.array(order, dtype=np.int64)
        loops.two_opt(self.rank, self.after, self.row, self.place, self.costs, improved, most)
        return improved

    def padded(self) -> "PipelineEvaluator":
        """Return the pipeline with one more microbatch, numbered last, that costs nothing."""
        nothing = np.zeros((len(self.costs), 1), dtype=np.int64)
        return replace(self, costs=np.ascontiguousarray(np.hstack([self.costs, nothing])))


def _program(rank: int, ranks: int, chunks: int, microbatches: int) -> list[Operation]:
    """Return a rank's operations in order: warm-up, one forward one backward, cool-down."""
    count = microbatches * chunks
    if chunks == 1:
        warm = min(ranks - 1 - rank, count)
    else:
        warm = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, count)

    def passed(k: int, backward: bool) -> Operation:
        block, within = divmod(k, ranks * chunks)
        chunk, place = within // ranks, block * ranks + within % ranks
        if chunks == 1:
            chunk, place = 0, k
        if backward:
            chunk = chunks - 1 - chunk
        return backward, chunk * ranks + rank, place

    operations = [passed(k, False) for k in range(warm)]
    for k in range(count - warm):
        operations += [passed(warm + k, False), passed(k, True)]
    return operations + [passed(k, True) for k in range(count - warm, count)]


def _flat(
    programs: list[list[Operation]], stages: int, microbatches: int
) -> tuple[Int64, Int64, Int64, Int64]:
    """List all ranks' operations so that each comes after those it waits for."""
    number = np.full((2, stages, microbatches), -1, dtype=np.int64)
    flat: list[tuple[int, int, int, int]] = []
    at = [0] * len(programs)
    total = sum(len(program) for program in programs)
    while len(flat) < total:
        before = len(flat)
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                backward, stage, place = program[at[rank]]
                after = _find_input(number, backward, stage, place)
                if after == -2:
                    break
                number[int(backward), stage, place] = len(flat)
                flat.append((rank, after, stage + stages * backward, place))
                at[rank] += 1
        if len(flat) == before:
            raise ValueError(f"{microbatches} microbatches on {stages} stages deadlock; use more")
    rank_, after_, row, place_ = np.array(flat, dtype=np.int64).T.copy()
    return rank_, after_, row, place_


def _find_input(number: Int64, backward: bool, stage: int, place: int) -> int:
    """Return the operation that hands over the input: -1 for none, -2 if it is not listed yet."""
    if not backward and stage == 0:
        return -1
    last = stage == number.shape[1] - 1
    if not backward:
        operation = number[0, stage - 1, place]
    else:
        operation = number[0, stage, place] if last else number[1, stage + 1, place]
    return int(operation) if operation >= 0 else -2
