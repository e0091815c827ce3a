"""How the processes of a job meet at the start, and exchange what is no tensor.

torch makes groups and exchanges objects with timeouts of its own, of half an hour. Here no
process waits longer than the pipeline's deadline.
"""

import pickle
from datetime import timedelta
from time import monotonic
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .process_groups import PeerLostError, report_lost, wait_for

T = TypeVar("T")
# Apart from messages that the training loop may have under way.
_TAG = 19
# Apart from those of processes that still wait elsewhere, whose messages have other sizes.
FAULTS = 20


_START = "make the pipeline"


def await_all(deadline_s: float) -> None:
    """Wait until all processes of the job have called this. Raises as `monitored_gather` does.

    Without gloo it does nothing: NCCL connects two ranks on first use, with its own timeout.
    """
    if "cpu:gloo" in dist.get_backend_config() and dist.group.WORLD is not None:
        monitored_gather(torch.zeros(1), dist.group.WORLD, deadline_s, _START)


def monitored_gather(
    tensor: Tensor, group: dist.ProcessGroup, deadline_s: float, task: str, tag: int = _TAG
) -> list[Tensor]:
    """Return every rank's tensor, all of one size, by messages: who does not send is known.

    `task`: what they come for. The messages are on the CPU. Raises PeerLostError on every
    process that is there if others do not come within the deadline, with the ranks of all that are
    missing. The group cannot be used any more after that.
    """
    rank, ranks = group.rank(), group.size()
    peers = [peer for peer in range(ranks) if peer != rank]
    tensors = [tensor if peer == rank else torch.empty_like(tensor) for peer in range(ranks)]
    running: list[tuple[int, dist.Work | None]] = []
    for peer in peers:
        try:
            running.append((peer, group.send([tensor], peer, tag)))
            running.append((peer, group.recv([tensors[peer]], peer, tag)))
        except RuntimeError:  # its connection is closed
            running.append((peer, None))
    until = monotonic() + deadline_s
    missing = {peer for peer, work in running if work is None or not _arrives(work, until)}
    if missing:
        raise PeerLostError(
            f"rank {rank} of {ranks} waits since {deadline_s:g} s for rank "
            f"{', '.join(map(str, sorted(missing)))}, which did not come to {task}; every "
            "process of the job has to"
        )
    return tensors


def _arrives(work: dist.Work, until: float) -> bool:
    """Return whether a message comes in time. One that has come is found after that time, too."""
    try:
        work.wait(timedelta(seconds=max(0.001, until - monotonic())))
    except RuntimeError:
        return False
    return True


def gather_objects(
    message: T,
    group: dist.ProcessGroup | None,
    device: torch.device,
    deadline_s: float,
    task: str = _START,
    tag: int = _TAG,
) -> list[T]:
    """Return what every rank of a group gives, by rank; all of them call this to do `task`.

    `group`: None for this process alone. `device`: where the group's messages are, if it has none
    on the CPU. `tag`: of the messages there. Raises PeerLostError if a rank is lost or the deadline
    passes, with the ranks that did not come where messages are on the CPU.
    """
    if group is None or group.size() == 1:
        return [message]
    text = torch.frombuffer(bytearray(pickle.dumps(message)), dtype=torch.uint8)
    on_cpu = device.type == "cpu" or "cpu:gloo" in dist.get_backend_config(group)

    def gather(tensor: Tensor) -> Tensor:
        if on_cpu:
            return torch.stack(monitored_gather(tensor, group, deadline_s, task, tag))
        moved = tensor.to(device)
        tensors = [torch.empty_like(moved) for _ in range(group.size())]
        wait_for(group.allgather([tensors], [moved]), moved, deadline_s)
        return torch.stack(tensors).cpu()

    with report_lost():
        sizes = gather(torch.tensor(len(text))).tolist()
        # Collectives take equal parts.
        padded = text.new_zeros(max(sizes))
        padded[: len(text)] = text
        rows = gather(padded)
    return [
        pickle.loads(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)
    ]


def find_device(kind: str) -> torch.device:
    """Return this process' device of a type."""
    if kind == "cpu":
        return torch.device(kind)
    return torch.device(kind, torch.accelerator.current_device_index())
