"""A rank of a loop whose microbatches take as long as they have tokens; prints each one's tokens.

    python -m tests.tools.trial.two_ranks RANK PORT COLLATE BALANCE

BALANCE is "" for torch's DataLoader in random order, or a Balance as JSON.
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, DistributedSampler

import counterpoise as cp
from tests.tools.trial import kinds

RANKS, BATCH_SIZE, EPOCHS = 2, 8, 2
# A token takes so many seconds: little, as tokens are counted, and time is not measured.
TOKEN_S = 1e-7


def main(rank: int, port: str, collate: str, balance: str) -> None:
    """Print the tokens of this rank's microbatches, in order."""
    torch.distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    pad = getattr(kinds, collate)
    loader: DataLoader
    if balance:
        plan = cp.Balance.from_json(balance)
        loader = cp.DataLoader(kinds.long, BATCH_SIZE, shuffle=True, collate_fn=pad, balance=plan)
    else:
        sampler = DistributedSampler(kinds.long, drop_last=True)
        loader = DataLoader(kinds.long, BATCH_SIZE, sampler=sampler, collate_fn=pad)
    done = []
    for epoch in range(EPOCHS):
        (loader if balance else sampler).set_epoch(epoch)
        for batch in loader:
            tokens = batch["input_ids"].numel()
            time.sleep(TOKEN_S * tokens)
            done.append(tokens)
            torch.distributed.barrier()
    print(*done)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
