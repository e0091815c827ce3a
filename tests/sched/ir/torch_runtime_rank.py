"""One rank of torch's own pipeline runtime: runs every CSV of a folder, compares the gradients.

Started once per rank, as `python torch_runtime_rank.py RANK RANKS FOLDER`. `cases.json` in the
folder lists the cases; the rank writes `rank<r>.json`: by case the largest |a - b| / max |b| over
the gradients of its stages, where b are those of one process with autograd alone.
"""

import copy
import datetime
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

HIDDEN = 8


class Layer(nn.Module):
    """A residual layer: weights in front of and behind something that is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def error(case: dict[str, Any], folder: Path) -> float:
    """Run one case; return the largest error of this rank's gradients."""
    torch.manual_seed(0)
    stages, microbatches = len(case["placement"]), case["microbatches"]
    model = [Layer() for _ in range(stages)]
    reference = copy.deepcopy(model)
    x, target = torch.randn(2 * microbatches, HIDDEN), torch.randn(2 * microbatches, HIDDEN)
    own = [s for s, rank in enumerate(case["placement"]) if rank == dist.get_rank()]
    parts = [PipelineStage(model[s], s, stages, torch.device("cpu")) for s in own]
    runtime = _PipelineScheduleRuntime(parts, microbatches, loss_fn=loss)
    runtime._load_csv(str(folder / case["file"]), format="compute_only")
    given = (x,) if 0 in own else ()
    runtime.step(*given, target=target if stages - 1 in own else None)
    y = x
    for layer in reference:
        y = layer(y)
    loss(y, target).backward()
    pairs = (
        (a.grad, b.grad)
        for s in own
        for a, b in zip(model[s].parameters(), reference[s].parameters(), strict=True)
    )
    errors = []
    for ours, theirs in pairs:
        assert ours is not None, "torch left a gradient out"
        assert theirs is not None
        errors.append(float((ours - theirs).abs().max() / theirs.abs().max()))
    return max(errors)


def main(rank: int, ranks: int, folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'store'}"
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", meeting, rank=rank, world_size=ranks, timeout=limit)
    cases = json.loads((folder / "cases.json").read_text())
    found = {case["file"]: error(case, folder) for case in cases}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
