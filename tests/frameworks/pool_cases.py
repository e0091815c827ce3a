"""What the tests of the pool itself run in its processes."""

import os

import torch
import torch.distributed as dist


def added_up() -> int:
    """Return the sum of all ranks' numbers, from 1."""
    own = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(own)
    return int(own)


def failing(dies: bool) -> int:
    """Fail in rank 0, where the others wait for it in a collective."""
    if dist.get_rank() == 0:
        if dies:
            os._exit(3)
        raise ValueError("this rank cannot")
    return added_up()
