"""One process of test_topologies: takes batches under several topologies, and writes what came.

python topology_trainer.py FOLDER WORLD, with RANK set. In order:
  each of CASES     one epoch; a process whose number among the sharers is not in `open` stays away
  configuration     process 1, which shares its rank with 0, has another seed
  killed            process 3 is killed by a signal after one microbatch; timeout is 0
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from counterpoise import Ranks
from counterpoise.sched.runtime import Units, UnitSize
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

COUNT = 32
# More than processes that share a rank may be apart.
STEPS = 4
BOTH = (0, 1)
# Per case: the sizes of the topology, whether it is given as a DeviceMesh, and which of the
# processes that share a rank open the loader.
CASES: dict[str, tuple[Any, bool, tuple[int, ...]]] = {
    "dp 2 x tp 2": ({"dp": 2, "tp": 2}, True, BOTH),
    "dp 2 x cp 2": ({"dp": 2, "cp": 2}, False, BOTH),
    "pp 2 x dp 2": ({"pp": 2, "dp": 2}, True, BOTH),
    "hsdp 2 x 2": ({"dp_replicate": 2, "dp_shard": 2}, True, (0,)),
    "one tp rank": ({"dp": 2, "tp": 2}, False, (0,)),
    # ranks 2 and 3 encode for both data-parallel ranks
    "units": (Units(UnitSize(dp=2, pp=1), UnitSize(dp=2, pp=1)), False, (0, 1, 2)),
}
TEXTS, PIXELS = ("input_ids", "labels"), ("pixel_values", "tiles_per_image")


def fields_in_units(info: Any) -> tuple[str, ...]:
    """Return what this process of the units needs: an encoder, every second microbatch's pixels."""
    process = distributed.get_rank()
    if process < 2:
        return TEXTS
    return PIXELS if info.microbatch == process - 2 else ()


CASES_OF_8: dict[str, tuple[dict[str, int], bool, tuple[int, ...]]] = {
    "pp 2 x dp 2 x tp 2": ({"pp": 2, "dp": 2, "tp": 2}, True, (0, 1, 2, 3)),
    "hsdp 2 x 2 x tp 2": ({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, True, BOTH),
    "dp 4 x cp 2": ({"dp": 4, "cp": 2}, False, BOTH),
}


def make(count: int = COUNT, **changes: Any) -> Any:
    given: dict[str, Any] = {"accumulate": 2, "seed": 3, "samples_per_step": 16, "shuffle": True}
    given |= {"grouping": "balanced", "layout": "padded", "num_workers": 1, "prefetch_factor": 1}
    return balanced_loader(made.Augmented(count), **given | changes)


def take(loader: Any, most: int = 1 << 30) -> list[Any]:
    """Return (step, microbatch, rank, keys, digest of each field) of what comes."""
    found: list[Any] = []
    for batch in loader:
        info = loader.step_info
        digests = {name: made.digest(value) for name, value in sorted(batch.items())}
        found.append([info.step, info.microbatch, info.rank, list(info.keys), digests])
        if len(found) == most:
            break
    return found


def case(number: int, sizes: Any, as_mesh: bool, opens: tuple[int, ...]) -> Any:
    """Return what this process takes, None if it opens no loader."""
    topology: Any = sizes
    if as_mesh:
        names = tuple(sizes)
        topology = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
    fields = fields_in_units if isinstance(sizes, Units) else None
    loader = make(ranks=Ranks(topology, name=f"case {number}"), fields=fields)
    sharer = loader._late._ranks.find().sharer
    try:
        return take(loader) if sharer in opens else None
    finally:
        # Nobody leaves before all are done, as in training: an epoch is shorter than a start.
        distributed.barrier()
        loader.close()


def attempt(action: Any) -> Any:
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def other_configuration(rank: int, meet: Any) -> Any:
    """Processes 0 and 2 open the loader, then process 1 with another seed; process 3 has none."""
    loader = make(ranks=Ranks({"dp": 2, "tp": 2}, name="configuration"), seed=4 if rank == 1 else 3)
    reason = attempt(lambda: take(loader, 1)) if rank in (0, 2) else None
    meet()
    return attempt(lambda: take(loader, 1)) if rank == 1 else reason


def killed(rank: int, folder: Path, meet: Any) -> Any:
    """Process 3 dies after a microbatch; return what the others are told, and after which time.

    Process 0 opens its loader first, so the balancer is its own.
    """
    loader = make(STEPS * COUNT, ranks=Ranks({"dp": 2, "tp": 2}, name="killed"), timeout=0)
    if rank == 0:
        batches = iter(loader)
    meet()
    if rank != 0:
        batches = iter(loader)
    next(batches)
    meet()  # who dies before the one it shares a rank with has begun is missed by nobody
    if rank == 3:
        write(time.monotonic(), folder / "died.json")
        os.kill(os.getpid(), signal.SIGKILL)
    while not (folder / "died.json").exists():  # the epoch is short, and process 3 may be slow
        time.sleep(0.01)
    reason = attempt(lambda: [next(batches) for _ in range(STEPS * COUNT)])
    return reason, time.monotonic() - float((folder / "died.json").read_text())


def main(folder: str, world: str) -> None:
    rank, place = int(os.environ["RANK"]), Path(folder)
    distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=int(world)
    )
    came: dict[str, Any] = {}
    for number, (name, given) in enumerate((CASES if world == "4" else CASES_OF_8).items()):
        came[name] = attempt(lambda given=given, number=number: case(number, *given))
    if world == "4":
        came["configuration"] = other_configuration(rank, distributed.barrier)
        if rank == 3:
            write(came, place / "3.json")
        came["killed"] = killed(rank, place, distributed.barrier)
    write(came, place / f"{rank}.json")
    os._exit(0)  # the group has lost a member, and must not be torn down


def write(value: Any, path: Path) -> None:
    path.with_suffix(".part").write_text(json.dumps(value))
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
