"""Trains as one rank of `make faults`: writes down each step it gets, with its ledger.

Each step is one line of FOLDER/rank-N.jsonl: number, batches, ledger; the last whole line is where
a restarted rank resumes, as from a checkpoint. Before the last step it waits for
FOLDER/faults-over. At its end it writes down what it still has open.
"""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from counterpoise.loader import Balance, DataLoader, RemoteDataset

from .epoch import RANKS, SAMPLES_PER_STEP, STEPS
from .leftovers import descriptors, more_descriptors

SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}
PATIENCE_S = 60.0
POLL_S = 0.01


def digest(batch: Any) -> str:
    """Return a digest of a list of samples: the bytes of all their fields."""
    found = hashlib.blake2b(digest_size=12)
    for sample in batch:
        for name in sorted(sample):
            value = sample[name]
            content = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
            found.update(name.encode() + content)
    return found.hexdigest()


def main(words: list[str]) -> None:
    """Train with the arguments ADDRESS FOLDER RANK SECONDS_PER_STEP."""
    address, folder, rank, step_s = words
    before = descriptors(os.getpid())
    _train(address, Path(folder), int(rank), float(step_s))
    left = more_descriptors(os.getpid(), before, f"rank {rank}")
    Path(folder, f"rank-{rank}.end").write_text(json.dumps(left))


def _train(address: str, folder: Path, rank: int, step_s: float) -> None:
    """Train an epoch with a balancer, from where the notes end."""
    loader: Any = DataLoader(
        RemoteDataset("*.tar", arguments=SMALL),
        balance=Balance(
            grouping="isf",
            budgets={"tiles": 16, "tokens": 3000},
            accumulate="auto",
            samples_per_step=SAMPLES_PER_STEP,
        ),
        ranks=(rank, RANKS),
        shuffle=True,
        collate_fn=list,
        timeout=PATIENCE_S,
        balancer=address,
    )
    notes = folder / f"rank-{rank}.jsonl"
    noted = notes.read_text().splitlines() if notes.exists() else []
    if noted:
        loader.load_state_dict(json.loads(noted[-1])[2])
    _wait_for_faults(folder, len(noted))
    with notes.open("a") as file:
        for step in loader.steps():
            batches = [
                (info.microbatch, list(info.keys), digest(batch))
                for batch, info in zip(step.microbatches, step.infos, strict=True)
            ]
            file.write(json.dumps([step.number, batches, loader.state_dict()]) + "\n")
            file.flush()
            time.sleep(step_s)
            _wait_for_faults(folder, step.number + 1)
    loader.close()


def _wait_for_faults(folder: Path, steps: int) -> None:
    while steps == STEPS - 1 and not (folder / "faults-over").exists():
        time.sleep(POLL_S)
