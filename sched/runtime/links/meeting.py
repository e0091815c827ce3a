"""Meet the other processes at the start: who does not come is named, within the deadline.

torch makes groups and exchanges objects with timeouts of its own, of half an hour. Here nobody
waits longer than the pipeline's deadline.
"""

import pickle
from datetime import timedelta
from time import monotonic
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .process_groups import PeerLostError, wait_for

T = TypeVar("T")
# Apart from messages that the training loop may have under way.
_TAG = 19


def call_roll(group: dist.ProcessGroup, deadline_s: float) -> None:
    """Wait until all processes of a group have called this; its messages are on the CPU.

    Raises PeerLostError on every process that is there if others do not come within the deadline,
    with the ranks of all that are missing. The group cannot be used any more after that.
    """
    rank, ranks = group.rank(), group.size()
    others = [other for other in range(ranks) if other != rank]
    token, came = torch.zeros(1), {other: torch.zeros(1) for other in others}
    sent = [group.send([token], other, _TAG) for other in others]
    awaited = {other: group.recv([came[other]], other, _TAG) for other in others}
    until = monotonic() + deadline_s
    missing = [other for other, work in awaited.items() if not _comes(work, until)]
    if missing:
        raise PeerLostError(
            f"rank {rank} of {ranks} waits since {deadline_s:g} s for rank "
            f"{', '.join(map(str, missing))}, which did not come to make the pipeline; every "
            "process of the job makes one"
        )
    for work in sent:
        wait_for(work, token, deadline_s)


def _comes(work: dist.Work, until: float) -> bool:
    """Return whether a message comes in time. One that has come is found after that time, too."""
    try:
        work.wait(timedelta(seconds=max(0.001, until - monotonic())))
    except RuntimeError:
        return False
    return True


def gather_objects(
    own: T, group: dist.ProcessGroup | None, device: torch.device, deadline_s: float
) -> list[T]:
    """Return what every rank of a group gives, by rank; all of them call this.

    `group`: None for this process alone. `device`: where the group's messages are. Raises
    PeerLostError if a rank is lost or the deadline passes.
    """
    if group is None or group.size() == 1:
        return [own]
    text = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8).to(device)
    try:
        sizes = _gather(torch.tensor(len(text), device=device), group, deadline_s).tolist()
        # Collectives take equal parts.
        padded = text.new_zeros(max(sizes))
        padded[: len(text)] = text
        rows = _gather(padded, group, deadline_s).cpu()
    except RuntimeError as error:
        raise PeerLostError(str(error).splitlines()[0]) from error
    return [
        pickle.loads(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)
    ]


def _gather(own: Tensor, group: dist.ProcessGroup, deadline_s: float) -> Tensor:
    found = [torch.empty_like(own) for _ in range(group.size())]
    wait_for(group.allgather([found], [own]), own, deadline_s)
    return torch.stack(found)
