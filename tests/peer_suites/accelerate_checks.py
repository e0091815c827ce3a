"""accelerate's distributed checks that read a DataLoader, each by itself on two gloo processes.

They are in accelerate's installed scripts, which end at the first check that fails. This file is a
suite like the others (suites.py): its import of DataLoader is replaced, and it puts the class where
the scripts have theirs. Run as a script, it is one of the two processes.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

LIMIT_S = 150.0  # some of accelerate's own hang on gloo, with torch's loader too
SCRIPTS = "accelerate.test_utils.scripts"
# script: its checks that take no arguments, or the accelerator
ALONE = {
    "test_distributed_data_loop": (
        "test_default_ensures_even_batch_sizes",
        "test_can_disable_even_batches",
        "test_can_join_uneven_inputs",
        "test_join_can_override_even_batches",
        "test_join_can_override_for_mixed_type_dataloaders",
        "test_join_raises_warning_for_iterable_when_overriding_even_batches",
        "test_pickle_accelerator",
    ),
    "test_sync": ("test_dataloader_break", "test_gradient_accumulation_with_opt_and_scheduler"),
    "test_script": (
        "dl_preparation_check",
        "central_dl_preparation_check",
        "custom_sampler_check",
        "check_seedable_sampler",
        "check_seedable_sampler_with_data_seed",
        "check_seedable_sampler_in_batch_sampler_shard",
        "test_reinstantiated_state",
    ),
}
WITH_ACCELERATOR = {
    "test_distributed_data_loop": (
        "test_stateful_dataloader",
        "test_stateful_dataloader_save_state",
    ),
    "test_sync": ("test_distributed_sync", "test_distributed_sync_multiple_fwd"),
}
# how test_distributed_data_loop calls its test_data_loader
LOADERS = ("in order", "shuffled", "batch_sampler", "sampler of batches")
TRAINING = {"training": False, "training, seedable sampler": True}


def run_data_loader(kind: str) -> None:
    """Call test_data_loader as its script's main() does."""
    from accelerate.test_utils.scripts import test_distributed_data_loop as script
    from torch.utils.data import BatchSampler, RandomSampler, default_collate

    accelerator, dataset = script.create_accelerator(), script.DummyDataset()
    given: dict[str, Any] = {"num_workers": script.NUM_WORKERS}
    batches = BatchSampler(RandomSampler(dataset), script.BATCH_SIZE, drop_last=False)
    given |= {
        "in order": {"shuffle": False, "batch_size": script.BATCH_SIZE},
        "shuffled": {"shuffle": True, "batch_size": script.BATCH_SIZE},
        "batch_sampler": {"batch_sampler": batches},
        "sampler of batches": {
            "sampler": batches, "batch_size": None, "collate_fn": default_collate,
        },
    }[kind]  # fmt: skip
    script.test_data_loader(DataLoader(dataset, **given), accelerator)


def checks() -> dict[str, Callable[[], object]]:
    """Return what to call for each check, by its name; the scripts read our DataLoader."""
    from accelerate import Accelerator

    accelerator = Accelerator()
    found: dict[str, Callable[[], object]] = {}
    for script, names in ALONE.items():
        module: Any = importlib.import_module(f"{SCRIPTS}.{script}")
        module.DataLoader = DataLoader
        found |= {name: getattr(module, name) for name in names}
        for name in WITH_ACCELERATOR.get(script, ()):
            found[name] = partial(getattr(module, name), accelerator)
    last: Any = importlib.import_module(f"{SCRIPTS}.test_script")
    last.rng_sync_check()  # as its main() does: the ranks shuffle alike from here on
    found |= {name: partial(last.training_check, on) for name, on in TRAINING.items()}
    return found | {kind: partial(run_data_loader, kind) for kind in LOADERS}


NAMES = [
    *(name for names in ALONE.values() for name in names),
    *(name for names in WITH_ACCELERATOR.values() for name in names),
    *TRAINING,
    *LOADERS,
]


@pytest.mark.parametrize("name", NAMES)
def test_check(name: str) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [torchrun, "--standalone", "--nproc-per-node", "2", __file__, name]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = running.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        running.terminate()  # torchrun ends the two
        running.communicate()
        pytest.fail(f"not over after {LIMIT_S:.0f} s")
    assert running.returncode == 0, said[-3000:]


if __name__ == "__main__":
    checks()[sys.argv[1]]()
