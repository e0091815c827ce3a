"""Runs transformers' distributed scripts on two processes of this machine, without GPUs.

transformers' own tests of them ask for several accelerators. What is compared here is what those
compare. accelerate's launcher starts one process where there is no GPU: the training that it should
repeat is compared with that of one process on batches of twice the size.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(os.environ["PEER_CHECKOUT"], "tests/trainer/distributed/scripts")
START = Path(__file__).with_name("swap_plugin.py")  # has the loader swapped in each process
PROCESSES, BATCH = 2, 2
LOG_TAIL = 3000
LIMIT_S = 300  # a script takes 10 on a machine that is not loaded; one that hangs fails alone


def run_script(name: str, out: Path, *args: object, processes: int = PROCESSES) -> None:
    """Run one of the scripts; a script that fails, fails the test."""
    if not (SCRIPTS / name).exists():
        pytest.skip(f"this checkout has no {name}")
    command: list[object] = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", START, SCRIPTS / name, "--output_dir", out, *args]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-LOG_TAIL:]


def read_json(path: Path) -> Any:
    """Return what a script has written."""
    return json.loads(path.read_text())


def test_batch_rebalance_ddp(tmp_path: Path) -> None:
    run_script("batch_rebalance_ddp.py", tmp_path)
    result = read_json(tmp_path / "result.json")
    assert result["ok"], result


@pytest.mark.parametrize("name", ["worker_seed", "dispatch_batches", "eval_ddp"])
def test_script_that_checks_itself(name: str, tmp_path: Path) -> None:
    run_script(f"{name}.py", tmp_path)


def test_training_parity(tmp_path: Path) -> None:
    losses = []
    for processes in (1, PROCESSES):
        out, size = tmp_path / str(processes), BATCH * PROCESSES // processes
        run_script(
            "training_parity.py", out, "--per_device_train_batch_size", size, processes=processes
        )
        losses.append(read_json(out / "losses.json"))
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_loss_averaging(tmp_path: Path) -> None:
    size = "--per_device_train_batch_size"
    run_script(
        "loss_averaging.py", tmp_path / "base", size, BATCH * PROCESSES,
        "--average_tokens_across_devices", "True", processes=1,
    )  # fmt: skip
    run_script("loss_averaging.py", tmp_path / "multi", size, BATCH, "--run_both_averaging_modes")
    base = read_json(tmp_path / "base_losses.json")
    broken, fixed = (
        read_json(tmp_path / f"multi/{name}_losses.json") for name in ("broken", "fixed")
    )
    assert max(abs(a - b) for a, b in zip(base, broken, strict=True)) > 0.5
    assert max(abs(a - b) for a, b in zip(base, fixed, strict=True)) < 0.005
