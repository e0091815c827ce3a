"""Data sets that kill their workers, and loops whose workers are killed."""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

COUNT = 120


class Deadly(Dataset[Any]):
    """Tensors of one number each; `bad` kills whoever loads it."""

    def __init__(self, bad: int = -1, load_s: float = 0.0) -> None:
        self.bad, self.load_s = bad, load_s

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.load_s)
        return torch.full((8,), index)


class Hanging(Dataset[int]):
    """Numbers; number 5 comes once `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.go_on.wait(60)
        return index


class Killer(threading.Thread):
    """Kills one of the processes that `victims` returns, some times, while a loop runs."""

    def __init__(self, victims: Callable[[], list[int]], kills: int, seed: int) -> None:
        super().__init__()
        self._victims, self._kills = victims, kills
        self._random = random.Random(seed)

    def run(self) -> None:
        for _ in range(self._kills):
            time.sleep(self._random.uniform(0.0, 0.05))
            try:
                os.kill(self._random.choice(self._victims()), signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just been killed, and is not replaced yet
