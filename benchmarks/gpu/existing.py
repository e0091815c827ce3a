"""Parts that other benches have: pipelines beside torch's, and vocabulary layers."""

from typing import Any

import torch

from ..runtime.compare import started, step_times
from ..runtime.contenders import PipelineCase
from ..runtime.model import PipelineSizes
from ..vocabulary.layers import LayerCase, measure
from .parts import START_S, Row, Task, rounds

SCHEDULES = ("1f1b", "zbv")
REPEATS = 2


def measure_pipelines(task: Task) -> list[Row]:
    """Return a row for each schedule: steps of our runtime and of torch's, in turns."""
    ranks = min(task.devices, 4)
    small = PipelineSizes(ranks, 2 * ranks, 2 * ranks, 32, 16, 64)
    sizes = small if task.small else PipelineSizes(ranks, 4 * ranks, 2 * ranks, 2048, 2048, 32768)
    return [
        _pipeline(PipelineCase(name, sizes, device=task.device), task.seconds / len(SCHEDULES))
        for name in SCHEDULES
    ]


def _pipeline(case: PipelineCase, seconds: float) -> Row:
    with started(case, START_S) as running:
        errors = {}
        for name, one in running.items():
            with one.awake():
                errors[name] = max(one.call("gradient_error"))
        found = [step_times(running, 1, REPEATS) for _ in rounds(seconds)]
    middle = sorted(found, key=lambda each: each["time_ratio"][0])[len(found) // 2]
    return {
        "schedule": case.schedule, "ranks": str(case.sizes.ranks),
        "ours, ms": f"{middle['step_ms']['ours'][0]:.2f}",
        "torch, ms": f"{middle['step_ms']['torch'][0]:.2f}",
        "torch / ours": f"{middle['time_ratio'][0]:.2f}",
        "gradients' error, ours": f"{errors['ours']:.0e}",
        "gradients' error, torch": f"{errors['torch']:.0e}",
    }  # fmt: skip


class VocabularyDevice:
    """One device, which runs the passes of a vocabulary shard."""

    def __init__(self, rank: int, task: Task) -> None:
        del rank
        sizes = (256, 32, 64) if task.small else (131_072, 4096, 4096)
        dtype = torch.float32 if task.small else torch.bfloat16
        self.case = LayerCase(*sizes, 4, dtype, torch.device(task.device))

    def measure(self, count: int) -> Any:
        """Return the bench's report."""
        return measure(self.case, count, compiled=self.case.device.type == "cuda")


def measure_vocabulary(task: Task) -> list[Row]:
    """Return a row for each way to compute the loss of a large vocabulary."""
    with task.start(VocabularyDevice, 1) as ranks:
        report = ranks.call("measure", 3 if task.small else 20)[0]
    return [
        {
            "contender": name, "ms": f"{cell['ms']:.2f}",
            "over cross_entropy": f"{cell['time_ratio'][0]:.2f}",
            "peak, MiB": f"{cell['peak_bytes'] / 2**20:.1f}",
        }
        for name, cell in report.items() if isinstance(cell, dict)
    ]  # fmt: skip
