"""Digests of all that the loader delivers, case by case (cases.py).

    python -m tests.deliveries.record            compare with deliveries.json
    python -m tests.deliveries.record --write    write deliveries.json
    python -m tests.deliveries.record --show "isf, exact"    a digest for every batch of a case

A case is a sequence of records: a batch and what the loader says about it, in the order in which
they come. A digest covers shapes, dtypes and bytes, and nothing that differs between two runs;
other versions of torch, numpy and Pillow may draw, write and decode differently.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader as TorchLoader

from tests.deliveries import cases, data as made, library
from tests.deliveries.digest import digest
from tests.deliveries.place import Place, open_data, real_shards
from tests.forking.popen import Popen

HERE = Path(__file__).parent
FILE = HERE / "deliveries.json"
LIMIT_S = 120

# Where a batch came (epoch, step, ...), and the digest of it and of what is said about it.
Record = tuple[str, str]


# --- digests


def digest_of_case(records: Iterable[Record]) -> dict[str, Any]:
    """Return how many records a case has and the hash of all."""
    found = list(records)
    return {"records": len(found), "digest": digest(found)}


def described(info: Any) -> dict[str, Any]:
    """Return a StepInfo as plain values."""
    found = {name: getattr(info, name) for name in library.INFO}
    # The record is older than costs of microbatches without samples, which are 0.
    return found | {"costs": dict(info.costs) if info.samples else {}}


def place_of(info: Any) -> str:
    """Return a record's label: epoch, step, microbatch and rank."""
    return f"{info.epoch} {info.step} {info.microbatch} {info.rank}"


# --- what comes


def make(case: cases.Case, place: Place, **changes: Any) -> Any:
    """Return the loader of a case."""
    data = open_data(case.data, place.folder)
    return library.balanced_loader(data, case.all_options(), **{**case.all_rest(), **changes})


def take_epoch(loader: Any) -> Iterator[Record]:
    """Yield what comes in one epoch, and at its end how many samples were left out."""
    for batch in loader:
        info = library.make_info(loader)
        yield place_of(info), digest([described(info), batch])
    yield "left out", str(loader.left_out)


def take(loader: Any, epochs: int) -> Iterator[Record]:
    """Yield what comes until `epochs` are over."""
    while loader.state_dict()["epoch"] < epochs:
        yield from take_epoch(loader)
    loader.close()


def from_plain(
    data: str, arguments: dict[str, Any], seed: int | None, epochs: int, place: Place
) -> Iterator[Record]:
    """Yield what a loader without balancing delivers."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    dataset = open_data(data, place.folder)
    loader = library.plain_loader(dataset, generator=generator, **arguments)
    for epoch in range(epochs):
        for number, batch in enumerate(loader):
            yield f"{epoch} {number}", digest(batch)
        yield "left out", str(loader.left_out)


def from_plain_resumed(
    data: str, arguments: dict[str, Any], batches: int, place: Place
) -> Iterator[Record]:
    """Yield what a loader without balancing delivers, continued by another."""
    loader = library.plain_loader(open_data(data, place.folder), **arguments)
    iterator = iter(loader)
    for number in range(batches):
        yield f"before {number}", digest(next(iterator))
    state = json.loads(json.dumps(loader.state_dict()))
    second = library.plain_loader(open_data(data, place.folder), **arguments)
    second.load_state_dict(state)
    for number, batch in enumerate(second):
        yield f"after {number}", digest(batch)


def from_loader(case: cases.Case, place: Place) -> Iterator[Record]:
    """Yield what a balanced loader delivers."""
    return take(make(case, place), case.epochs)


def from_steps(case: cases.Case, place: Place) -> Iterator[Record]:
    """Yield what a balanced loader delivers in whole steps."""
    loader = make(case, place)
    for step in loader.steps():
        yield f"step {step.number}", str(len(step.microbatches))
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            yield place_of(info), digest([described(info), batch])
    loader.close()


def from_resumed(
    first: cases.Case, microbatches: int, second: cases.Case, place: Place
) -> Iterator[Record]:
    """Yield what a balanced loader delivers, continued by another."""
    loader = make(first, place)
    yield from itertools.islice(take_epoch(loader), microbatches)
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    loader = make(second, place)
    loader.load_state_dict(state)
    yield from take(loader, second.epochs)


def from_sampler(case: cases.Case, place: Place) -> Iterator[Record]:
    """Yield the names in each rank's batches from torch's loader with our sampler."""
    data, rest = open_data(case.data, place.folder), case.all_rest()
    ranks = rest["ranks"].virtual
    for rank in range(ranks):
        sampler = library.balanced_sampler(
            made.costs(len(data)),
            case.all_options(),
            shuffle=rest["shuffle"],
            drop_last=rest["drop_last"],
            ranks=(rank, ranks),
        )
        for epoch in range(case.epochs):
            sampler.set_epoch(epoch)
            loader = TorchLoader(data, batch_sampler=sampler, collate_fn=list)
            for number, batch in enumerate(loader):
                names = [sample["name"] for sample in batch]
                yield f"{epoch} {number} {rank}", digest([names, len(sampler)])


def from_remote(case: cases.Case, place: Place) -> Iterator[Record]:
    """Yield what workers elsewhere deliver."""
    loader = make(case, place, balancer=place.address(), timeout=LIMIT_S)
    return take(loader, case.epochs)


def from_two_ranks(case: cases.Case, place: Place) -> Iterator[Record]:
    """Yield what workers elsewhere deliver to two loaders, one for each rank, in turns."""
    given = {"balancer": place.address(), "timeout": LIMIT_S}
    loaders = [make(case, place, ranks=(rank, 2), **given) for rank in (0, 1)]
    for pair in zip(*[loader.steps() for loader in loaders], strict=True):
        for step in pair:
            for batch, info in zip(step.microbatches, step.infos, strict=True):
                yield place_of(info), digest([described(info), batch])
    for loader in loaders:
        loader.close()


def from_distributed(case: cases.Case, place: Place) -> Iterator[Record]:
    """Yield digests of what comes to two processes, in the order of places."""
    folder = Path(tempfile.mkdtemp(dir=place.folder))
    called = f"play_rank(Path({str(folder)!r}), {_name_of(case)!r})"
    names = "from pathlib import Path; from tests.deliveries.record import play_rank"
    shared = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    shared = {**os.environ, **shared, "WORLD_SIZE": "2"}
    ranks = [
        Popen([sys.executable, "-c", f"{names}; {called}"], env={**shared, "RANK": str(rank)})
        for rank in (0, 1)
    ]
    try:
        for process in ranks:
            process.wait(LIMIT_S)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    came = [each for r in (0, 1) for each in json.loads((folder / f"{r}.json").read_text())]
    yield from sorted(map(tuple, came), key=lambda each: [int(word) for word in each[0].split()])


def play_rank(folder: Path, name: str) -> None:
    """Be one of two processes: write down the labels and digests of what comes."""
    rank, case = int(os.environ["RANK"]), cases.DISTRIBUTED[name]
    distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    data = open_data(case.data, folder)
    rest = {**case.all_rest(), "ranks": None}
    loader = library.balanced_loader(data, case.all_options(), **rest)
    came = [record for record in take(loader, case.epochs) if record[0] != "left out"]
    (folder / f"{rank}.json").write_text(json.dumps(came))


def _name_of(case: cases.Case) -> str:
    return next(name for name, each in cases.DISTRIBUTED.items() if each == case)


# --- all cases

CASES: dict[str, Callable[[Place], Iterator[Record]]] = {
    **{name: partial(from_plain, *case) for name, case in cases.PLAIN.items()},
    **{name: partial(from_plain_resumed, *case) for name, case in cases.PLAIN_RESUMED.items()},
    **{name: partial(from_resumed, *case) for name, case in cases.RESUMED.items()},
    **{
        name: partial(function, case)
        for function, table in [
            (from_loader, cases.LOADED), (from_steps, cases.IN_STEPS),
            (from_sampler, cases.SAMPLED), (from_remote, cases.REMOTE),
            (from_two_ranks, cases.TWO_RANKS), (from_distributed, cases.DISTRIBUTED),
            (from_loader, cases.REAL_LOADED),
        ]
        for name, case in table.items()
    },
}  # fmt: skip


def records_of(name: str, place: Place) -> Iterator[Record]:
    """Yield the records of a case; the global generators start at a seed."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    return CASES[name](place)


def needs_real_shards(name: str) -> bool:
    """Whether a case reads the real shards."""
    return name in cases.REAL_LOADED


def run_all(place: Place) -> dict[str, dict[str, Any]]:
    """Return what every case gives that can run here."""
    names = [name for name in CASES if real_shards() or not needs_real_shards(name)]
    return {name: digest_of_case(records_of(name, place)) for name in names}


def known() -> dict[str, dict[str, Any]]:
    """Return what deliveries.json holds."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return found


def main() -> int:
    """Write, compare or show; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write deliveries.json")
    parser.add_argument("--show", metavar="CASE", help="print the digest of every batch of a case")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        try:
            if wanted.show:
                for label, each in records_of(wanted.show, place):
                    print(f"{label}: {each}")
                return 0
            found = run_all(place)
        finally:
            place.close()
    if wanted.write:
        kept = known() if FILE.exists() else {}
        absent = {name: kept[name] for name in CASES if name in kept and name not in found}
        FILE.write_text(json.dumps(found | absent, indent=1) + "\n")
        return 0
    other = [name for name in found if found[name] != known().get(name)]
    print("\n".join(other) or f"{len(found)} cases deliver what they did")
    return int(bool(other))


if __name__ == "__main__":
    sys.exit(main())
