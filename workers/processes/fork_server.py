"""What multiprocessing's fork server imports before it forks: importing this module is its work.

A worker that it forks has torch already. Once the trainer and all workers have ended, however they
ended, the server ends, and removes the folder with its socket, as a trainer that was killed cannot.
"""

import atexit
import gc
import importlib
import os
import shutil
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from ..arena.malloc import share_one_heap

_PRELOADED = ("numpy", "torch", "torch.utils.data", "PIL.Image", "..daemon.loop")


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
    if isinstance(address, str):
        folder = Path(address).parent
        if folder.name.startswith("pymp-"):  # as multiprocessing calls it
            shutil.rmtree(folder, ignore_errors=True)


_import_all()
atexit.register(_remove_socket)
