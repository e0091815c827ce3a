"""How much longer products and collectives take beside each other, as `schedule fill` asks for it.

A long collective is on its way while short products run one after another: what one of them takes,
and what the collective takes, over the same alone.
"""

import time
from statistics import median

import torch
import torch.distributed as dist

from .parts import Row, Task, rounds, synchronize

PRODUCTS = 20


class ContendingRank:
    """One rank of a tensor-parallel group."""

    def __init__(self, rank: int, task: Task, ranks: int) -> None:
        del rank
        self.device = task.device
        size, numbers = (64, 2**18) if task.small else (4096, 2**28)
        dtype = torch.float32 if task.small else torch.bfloat16
        self.matrix = torch.randn(size, size, device=task.device, dtype=dtype)
        self.part = torch.ones(numbers, device=task.device, dtype=dtype)
        self.whole = torch.empty(ranks * numbers, device=task.device, dtype=dtype)

    def measure(self) -> tuple[float, float, float, float]:
        """Return the seconds of a product and a collective, alone and beside each other."""
        begun = self._begin()
        for _ in range(PRODUCTS):
            self._multiply()
        product = (time.perf_counter() - begun) / PRODUCTS
        begun = self._begin()
        self._gather().wait()
        synchronize(self.device)
        collective = time.perf_counter() - begun
        begun, count = self._begin(), 0
        work = self._gather()
        while not work.is_completed() or not count:
            self._multiply()
            count += 1
        both = time.perf_counter() - begun
        work.wait()
        return product, collective, both / count, both

    def _begin(self) -> float:
        dist.barrier()
        synchronize(self.device)
        return time.perf_counter()

    def _gather(self) -> dist.Work:
        work: dist.Work | None = dist.all_gather_into_tensor(self.whole, self.part, async_op=True)
        assert work is not None
        return work

    def _multiply(self) -> None:
        torch.mm(self.matrix, self.matrix)
        if self.device == "cuda":  # the collective's stream goes on
            torch.cuda.current_stream().synchronize()


def measure_contention(task: Task) -> list[Row]:
    """Return one row: the permille of a cost profile's table `contention`."""
    found: list[tuple[float, float]] = []
    with task.start(ContendingRank, task.devices, task.devices) as ranks:
        ranks.call("measure")
        for _ in rounds(task.seconds):
            each = ranks.call("measure")
            product, collective, beside, both = (median(row) for row in zip(*each, strict=True))
            found.append((beside / product, both / collective))
    compute, communication = (max(0.0, 1e3 * (median(row) - 1)) for row in zip(*found, strict=True))
    return [
        {"ranks": str(task.devices), "compute, permille": f"{compute:.0f}",
         "communication, permille": f"{communication:.0f}", "measured_on": task.name}
    ]  # fmt: skip
