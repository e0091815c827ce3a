"""A rank of test_ranks: takes epochs of its own stream, and writes what came.

python rank_trainer.py FOLDER          with RANK and WORLD_SIZE in the environment
"""

import faulthandler
import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

import counterpoise as cp
from tests.loader.streams import stream_data as made

# Samples of the streams of each rank: that of rank 1 ends first, or is empty.
COUNTS = (110, 30)


def make(rank, ranks, workers, kind=made.Stateful, counts=COUNTS, **changes):
    stream = kind(counts[rank])
    balance = cp.Balance(budgets={"tokens": 200}, layout="packed", accumulate=2)
    return cp.DataLoader(stream, balance=balance, num_workers=workers, **changes)


def take(loader, most=None):
    found = []
    for batch in loader:
        info = loader.step_info
        weights = info.samples, info.label_tokens, info.step_samples, info.step_label_tokens
        numbers = batch["input_ids"][0].unique().tolist() if info.samples else []
        found.append([info.epoch, info.step, info.microbatch, numbers, weights])
        if len(found) == most:
            break
    return found


def attempt(action):
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(folder):
    faulthandler.dump_traceback_later(100)  # where it hangs, if it does
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=ranks)
    came = {}
    for workers in (0, 2):
        loader = make(rank, ranks, workers)
        came[f"whole {workers}"] = attempt(lambda loader=loader: take(loader))
        came[f"again {workers}"] = attempt(lambda loader=loader: take(loader))
        loader.close()
        loader = make(rank, ranks, workers)
        take(loader, 7)
        ledger = loader.state_dict()
        loader.close()
        loader = make(rank, ranks, workers)
        loader.load_state_dict(ledger)
        came[f"resumed {workers}"] = attempt(lambda loader=loader: take(loader))
        loader.close()

    loader = make(rank, ranks, 0, counts=(60, 0))
    came["empty"] = attempt(lambda: take(loader))
    loader.close()

    ledgers = [None] * ranks
    dist.all_gather_object(ledgers, ledger)
    came["other"] = attempt(lambda: make(rank, ranks, 2).load_state_dict(ledgers[1 - rank]))

    left = make(rank, ranks, 1)
    take(left, 3 + rank)  # an epoch is left, elsewhere on each rank, and another begun
    came["left"] = attempt(lambda: take(left, 1))
    left.set_epoch(rank)
    came["apart"] = attempt(lambda: take(left))
    left.close()

    same = make(0, ranks, 0)
    came["same"] = attempt(lambda: take(same, 1))
    Path(folder, f"{rank}.part").write_text(json.dumps(came))
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.json"))
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
