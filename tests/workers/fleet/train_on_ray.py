"""A training function for Ray Train, as a user would write it."""

import json
import tempfile
import time
from pathlib import Path


def train(config):
    """Train an epoch from the last checkpoint; note each rank's samples of each step."""
    import ray.train
    import torch.distributed as dist

    import counterpoise as cp

    dataset = cp.TarDataset(config["data"], cp.workers.VisionLanguage(**config["small"]))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # 12 samples a step, whatever the number of ranks.
    loader = cp.DataLoader(
        dataset, balance=cp.Balance("fixed", accumulate=6 // ranks), batch_size=2, shuffle=True,
        collate_fn=list, balancer=cp.fleet.Ray(workers=2, root=config["root"], idle_s=60.0),
    )  # fmt: skip
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            loader.load_state_dict(json.loads(Path(folder, "ledger.json").read_text()))
    for step in loader.steps():
        found = {"ranks": ranks, "keys": [key for info in step.infos for key in info.keys]}
        Path(config["out"], f"{step.number:03d}.{rank}.of.{ranks}").write_text(json.dumps(found))
        while step.number >= held_at(config["out"]):  # the test has the cluster changed here
            time.sleep(0.1)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "ledger.json").write_text(json.dumps(loader.state_dict()))
            ray.train.report(
                {"step": step.number},
                checkpoint=ray.train.Checkpoint.from_directory(folder) if rank == 0 else None,
            )
    loader.close()


def held_at(out):
    """Return the step from which on training is held."""
    return int(Path(out, "hold").read_text())
