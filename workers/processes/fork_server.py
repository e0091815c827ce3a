"""Prepares multiprocessing's fork server before it forks: importing this module is its work.

A worker that it forks has torch already. Once the trainer and all workers have ended, however they
ended, the server ends, and removes its socket, as a trainer that was killed cannot.
"""

import atexit
import contextlib
import gc
import importlib
import os
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from ..arena.malloc import share_one_heap

_PRELOADED = ("numpy", "torch", "torch.utils.data", "PIL.Image", "..daemon.job_worker")


def _import_all() -> None:
    share_one_heap()
    # OpenBLAS would start its threads on import, and threads do not survive a fork.
    limited = "OPENBLAS_NUM_THREADS" not in os.environ
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in _PRELOADED:
        importlib.import_module(name, __package__)
    if limited:
        del os.environ["OPENBLAS_NUM_THREADS"]
    gc.collect()
    gc.freeze()


def _remove_socket() -> None:
    server: Any = forkserver._forkserver
    address = server._forkserver_address
    # multiprocessing makes one folder for a process and all below it, and removes its own at the
    # end: it is only removed here where the trainer is gone and no other socket is in it.
    if isinstance(address, str) and os.getppid() != _trainer:
        Path(address).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            Path(address).parent.rmdir()


_trainer = os.getppid()
_import_all()
atexit.register(_remove_socket)
