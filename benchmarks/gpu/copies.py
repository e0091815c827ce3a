"""Copies to the device: of pageable and pinned memory, and batches of loaders, beside products."""

from functools import partial
from statistics import median
from typing import Any

import torch

import counterpoise as cp

from .parts import Row, Task, measured_turns, over, seconds_of

COUNT, BATCH = 64, 8


class Tensors:
    """A data set of float tensors of `floats` numbers."""

    def __init__(self, floats: int) -> None:
        self.floats = floats

    def __len__(self) -> int:
        """Return the number of samples."""
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a sample."""
        return torch.full((self.floats,), float(index))


class Copier:
    """One device, to which batches are copied while it multiplies."""

    def __init__(self, rank: int, task: Task) -> None:
        del rank
        self.task, self.device = task, task.device
        size = 256 if task.small else 4096
        self.matrix = torch.randn(size, size, device=self.device)
        # 64 MiB a batch, of images say
        self.floats = 2**10 if task.small else 2**21

    def measure(self) -> list[Row]:
        """Return a row for each way to copy, then one for each loader."""
        return self._copies() + self._loaders()

    def _copies(self) -> list[Row]:
        given = torch.ones(BATCH * self.floats)
        sources = {"pageable": given} | ({} if self.task.small else {"pinned": given.pin_memory()})
        there = torch.empty_like(given, device=self.device)
        products = partial(self._multiply, 8)
        calls = {"products": partial(seconds_of, products, self.device)}
        for name, source in sources.items():
            copy = partial(there.copy_, source, non_blocking=True)
            calls[name] = partial(seconds_of, copy, self.device)
            calls[f"{name}, both"] = partial(seconds_of, partial(self._both, copy), self.device)
        times = {
            name: median(each)
            for name, each in measured_turns(calls, self.task.seconds / 4).items()
        }
        rows: list[Row] = []
        for name in sources:
            hidden = times[name] + times["products"] - times[f"{name}, both"]
            share = min(1.0, max(0.0, hidden / min(times[name], times["products"])))
            rows.append({
                "copy": name, "GB/s": f"{given.nbytes / times[name] / 1e9:.2f}",
                # a CPU copies by itself
                "hidden behind products": "" if self.task.small else f"{share:.0%}",
                "epoch over torch's": "", "batches pinned": "",
            })  # fmt: skip
        return rows

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self.matrix, self.matrix)

    def _both(self, copy: Any) -> None:
        """Multiply, and copy on a stream of its own."""
        self._multiply(8)
        if self.task.small:
            copy()
            return
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            copy()

    def _loaders(self) -> list[Row]:
        data: Any = Tensors(self.floats)
        given: dict[str, Any] = {
            "num_workers": 2, "persistent_workers": True, "pin_memory": not self.task.small,
        }  # fmt: skip
        balance = cp.Balance("fixed")
        loaders: dict[str, Any] = {
            "torch's loader": torch.utils.data.DataLoader(data, BATCH, **given),
            "ours": cp.DataLoader(data, BATCH, **given),
            "ours, balanced": cp.DataLoader(data, BATCH, balance=balance, shuffle=True, **given),
        }
        calls = {
            name: partial(seconds_of, partial(self._epoch, loader), self.device)
            for name, loader in loaders.items()
        }
        times = measured_turns(calls, self.task.seconds / 2)
        size = COUNT * self.floats * 4
        return [
            {
                "copy": name, "GB/s": f"{size / median(times[name]) / 1e9:.2f}",
                "hidden behind products": "",
                "epoch over torch's": over(times[name], times["torch's loader"]),
                "batches pinned": "yes" if next(iter(loader)).is_pinned() else "no",
            }
            for name, loader in loaders.items()
        ]  # fmt: skip

    def _epoch(self, loader: Any) -> None:
        """Copy each batch a step ahead of the products of the one before."""
        for batch in loader:
            batch.to(self.device, non_blocking=True)
            self._multiply(1)


def measure_copies(task: Task) -> list[Row]:
    """Return the rows of one device."""
    with task.start(Copier, 1) as ranks:
        found: list[Row] = ranks.call("measure")[0]
    return found
