"""A loader that is copied, or that a framework makes again, keeps each of its new arguments."""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp

COUNT = 12


def name_of(index: int) -> str:
    return f"n{index}"


def all_fields(_: cp.StepInfo) -> set[str]:
    return {"x"}


# By argument: a value, and whether a plain loader takes it.
VALUES: dict[str, tuple[Any, bool]] = {
    "balance": (cp.Balance("fixed", accumulate=2), False),
    "cost": ({"tokens": list(range(1, COUNT + 1))}, False), "key": (name_of, False),
    "ranks": (cp.Ranks((1, 2), name="a"), False),
    "balancer": (cp.Balancer("tcp://127.0.0.1:9", job="run", keys=None), False),
    "on_error": (cp.OnError("skip", max_errors=3, worker_restarts=2), True),
    "skip_keys": (("3", "5"), False), "fields": (all_fields, False),
    "buffer_bytes": (1 << 20, False), "decode_threads": (2, False), "growing_data": (True, True),
    "keep_stats": (("report", "run.json"), True),
}  # fmt: skip


def make(name: str) -> cp.DataLoader:
    value, is_plain = VALUES[name]
    arguments: dict[str, Any] = {name: value}
    data: Any = list(range(COUNT))
    if name == "decode_threads":
        data = ThreadSafe()
        arguments["num_workers"] = 1
    if name == "balancer":
        data = cp.RemoteDataset("*.tar")
    if not is_plain:
        arguments = {"balance": "fixed", "shuffle": True} | arguments
    return cp.DataLoader(data, 2, **arguments)


class ThreadSafe:
    """Numbers that several threads may load."""

    thread_safe = True

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index

    def load(self, index: int, _seed: int) -> int:
        return index


def repickle(loader: cp.DataLoader) -> Any:
    return pickle.loads(pickle.dumps(loader))


def remake_by_lightning(loader: cp.DataLoader) -> Any:
    """Return what Lightning makes of a loader; a balanced one it takes as it is."""
    fabric = pytest.importorskip("lightning.fabric")
    data = pytest.importorskip("lightning.fabric.utilities.data")
    if loader.is_balanced:
        return fabric.Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)._dataloader
    return data._update_dataloader(loader, loader.sampler)


def remake_by_accelerate(loader: cp.DataLoader) -> Any:
    accelerate = pytest.importorskip("accelerate")
    prepared = cp.adapters.prepare_accelerate(accelerate.Accelerator(cpu=True), loader)
    return prepared if loader.is_balanced else prepared.base_dataloader


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    "remake", [copy.copy, copy.deepcopy, repickle, remake_by_lightning, remake_by_accelerate]
)
@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_kept(name: str, remake: Callable[[cp.DataLoader], Any]) -> None:
    remade = remake(make(name))
    assert getattr(remade, name) == VALUES[name][0]
    if remade.is_balanced:
        assert remade._arguments == make(name)._arguments
    assert (remade._stats is not None) == (name == "keep_stats")
