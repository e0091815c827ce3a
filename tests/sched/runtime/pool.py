"""A pool of processes with a gloo process group, started once for all cases that need one."""

import functools
import multiprocessing as mp
import os
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.sched.runtime.kept_groups import keep_groups

WORLD = 4
_IMPORTED_ONCE = (
    "pytest",
    "torch._dynamo",  # the first use of a DTensor imports it
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "transformers.masking_utils",
    "transformers.modeling_utils",
    "counterpoise.sched.runtime",
    "tests.sched.runtime.kept_groups",
)


@functools.cache
def make_mesh(ranks: int, replicas: int | None = None, tp: int = 1) -> DeviceMesh:
    """Return the mesh of the pool's processes with that many pipeline ranks.

    `replicas`: of each pipeline, by default as many as there are processes for; with fewer, the
    other processes do the same in meshes of their own. `tp`: processes of each rank, all of which
    the mesh then has. Made once: gloo's threads of a mesh stay, and wake up a hundred times a
    second.
    """
    world = dist.get_world_size()
    if tp > 1:
        sizes = world // (ranks * tp), ranks, tp
        return init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "pp", "tp"))
    if replicas in (None, world // ranks):
        return init_device_mesh("cpu", (world // ranks, ranks), mesh_dim_names=("dp", "pp"))
    sizes = world // (replicas * ranks), replicas, ranks
    every = init_device_mesh("cpu", sizes, mesh_dim_names=("jobs", "dp", "pp"))
    return every["dp", "pp"]


@functools.cache
def make_square(rows: str, columns: str) -> DeviceMesh:
    """Return a mesh of four processes with these names of its dimensions."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=(rows, columns))


def _make_store(rank: int, world: int, pipe: Connection) -> Any:
    """Return the group's store: rank 0 serves it at a port that nobody else can have taken."""
    store_at = functools.partial(
        dist.TCPStore,  # type: ignore[attr-defined]
        "127.0.0.1",
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    if rank:
        return store_at(pipe.recv(), is_master=False)
    store = store_at(0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    return store


def _serve(rank: int, world: int, pipe: Connection) -> None:
    store = _make_store(rank, world, pipe)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    # Loaders start workers here, which Python refuses in daemons.
    vars(mp.current_process())["_config"]["daemon"] = False
    keep_groups()
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Pool:
    """Processes that run one function at a time, all of them together.

    Between functions they are stopped: gloo's threads, some for each group, wake up a hundred times
    a second, which takes a sixth of the machine from other tests.
    """

    def __init__(self, world: int = WORLD) -> None:
        # A server that has imported torch once: a process that imports it anew takes seconds.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload([*_IMPORTED_ONCE])
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        port = self.pipes[0].recv()
        for pipe in self.pipes[1:]:
            pipe.send(port)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what each rank's call returns; a rank's error is raised here."""
        self._signal(signal.SIGCONT)
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [pipe.recv() for pipe in self.pipes]
        self._signal(signal.SIGSTOP)
        for rank, (fine, answer) in enumerate(answers):
            assert fine, f"rank {rank}:\n{answer}"
        return [answer for _, answer in answers]

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid or 0, number)

    def kill(self) -> None:
        """End all processes, whatever they are at."""
        for process in self.processes:
            process.kill()
            process.join()

    def close(self) -> None:
        """End all processes, which wait for a function."""
        self._signal(signal.SIGCONT)
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(20)
            process.kill()
