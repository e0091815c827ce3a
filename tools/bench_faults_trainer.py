"""The trainer of `bench faults --processes`: notes what it is given, and keeps its ledger.

Run as a module: ADDRESS FOLDER SECONDS. Before it asks for the next step it appends a line about
the last one to FOLDER/steps.jsonl and replaces FOLDER/ledger.json, as a trainer saves checkpoints.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from ..loader import DataLoader, RemoteDataset

SMALL = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}
RANKS = 2
SAMPLES_PER_STEP = 8
PATIENCE_S = 60.0


def digest(batch: Any) -> str:
    """Return a digest of a list of samples: the bytes of all their fields."""
    found = hashlib.blake2b(digest_size=12)
    for sample in batch:
        for name in sorted(sample):
            value = sample[name]
            content = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
            found.update(name.encode() + content)
    return found.hexdigest()


def train(address: str, folder: Path, step_s: float) -> None:
    """Take an epoch from a balancer, from the ledger on if there is one."""
    loader: Any = DataLoader(
        RemoteDataset("*.tar", arguments=SMALL),
        balance="isf",
        budgets={"tiles": 16, "tokens": 3000},
        accumulate="auto",
        samples_per_step=SAMPLES_PER_STEP,
        virtual_ranks=RANKS,
        shuffle=True,
        layout="torch",
        collate_fn=list,
        timeout=PATIENCE_S,
        balancer=address,
    )
    ledger = folder / "ledger.json"
    if ledger.exists():
        loader.load_state_dict(json.loads(ledger.read_text()))
    with (folder / "steps.jsonl").open("a") as notes:
        for step in loader.steps():
            batches = [
                (info.rank, info.microbatch, list(info.keys), digest(batch))
                for batch, info in zip(step.microbatches, step.infos, strict=True)
            ]
            notes.write(json.dumps([step.number, batches]) + "\n")
            notes.flush()
            keep(ledger, json.dumps(loader.state_dict()))
            time.sleep(step_s)
    loader.close()


def keep(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
