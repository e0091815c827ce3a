"""`torchrun --standalone --nproc-per-node N SCRIPT ...`, its ranks forked (see popen.py)."""

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from tests.forking.popen import Popen


def torchrun(
    words: list[str], env: dict[str, str] | None = None, timeout: float = 240.0, **given: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script on as many ranks as the words after `torchrun` say; return all output, by rank.

    The ranks meet as those of torchrun do: at a store of the process that has started them.
    """
    standalone, option, number, *program = words
    assert (standalone, option) == ("--standalone", "--nproc-per-node"), words
    store = distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60)
    )
    common = {
        **(os.environ if env is None else env),
        "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": socket.gethostname(),
    }  # fmt: skip
    processes = [
        Popen(
            [sys.executable, *program], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **given,
        )
        for rank in range(int(number))
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    out, err = ("".join(part) for part in zip(*said, strict=True))
    status = next((each.returncode for each in processes if each.returncode), 0)
    return subprocess.CompletedProcess(words, status, out, err)


def written_by(script: str, folder: Path, world: int, *words: str, limit_s: float = 240.0) -> Any:
    """Run a script with a folder as `world` ranks; return what each has written to RANK.json."""
    processes = [
        Popen(
            [sys.executable, script, str(folder), *words],
            env={**os.environ, "WORLD_SIZE": str(world), "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        errors = [process.communicate(timeout=limit_s)[1] for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:  # what each has said shows who has hung
            process.kill()
        errors = [process.communicate()[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    written = [folder / f"{rank}.json" for rank in range(world)]
    assert all(path.exists() for path in written), errors
    return [json.loads(path.read_text()) for path in written]
