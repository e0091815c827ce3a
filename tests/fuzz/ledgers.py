"""Changes one to three fields of a ledger, and goes on from it: right, or an error that names one.

A change is taken as it is, or written anew with the right digest: then only the loader can tell,
and those fields are changed that it compares with its own. A ledger that is taken must deliver
what an uninterrupted run delivers from the position that it now says.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.utils.data import IterableDataset

from counterpoise import Ranks
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, LoaderError
from counterpoise.loader.resume.ledger import with_digest
from tests.fuzz.outcomes import Outcome, Trial

COUNT, STEP = 44, 8
Ledger = dict[str, Any]
# More than is left of any epoch: a loader that does not end is caught.
MOST = 200
ODD: tuple[Any, ...] = (
    *(-1, 0, 1, 7, 2**31, 2**40, 2**63, 2**70, -(2**63), True, False, None, 1.0, 0.5),
    *(float("nan"), "", "1", [], [1], {}, [None], {"a": 1}, "x" * 5000),
)
# The part of the trials that runs with a worker's process, which costs a hundred times as much.
WITH_A_WORKER = 0.005


class Numbers(IterableDataset[int]):
    """A stream without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT))


def cost_of(sample: int) -> dict[str, int]:
    """Return a cost that differs from sample to sample."""
    return {"tokens": 1 + sample * 7919 % 9}


def balanced(mode: Any, workers: int) -> DataLoader:
    """Return a loader that plays two ranks."""
    balance = Balance(samples_per_step=STEP, budgets={"tokens": 20}, accumulate="auto", mode=mode)
    return DataLoader(
        list(range(COUNT)), shuffle=True, balance=balance, cost=cost_of, ranks=Ranks(virtual=2),
        collate_fn=list, on_error="skip", num_workers=workers,
    )  # fmt: skip


def sampler() -> BalancedBatchSampler:
    """Return a sampler of one of two ranks."""
    costs = {"tokens": [cost_of(each)["tokens"] for each in range(COUNT)]}
    balance = Balance(samples_per_step=STEP, accumulate=2)
    return BalancedBatchSampler(costs, balance, ranks=(1, 2))


def plain(dataset: Any, workers: int, shuffle: bool | None = None) -> DataLoader:
    """Return a loader without balance."""
    return DataLoader(dataset, 4, shuffle, collate_fn=list, num_workers=workers)


@dataclass(frozen=True)
class Kind:
    """A kind of loader, made for a number of workers.

    position: the fields that say where it stands in an epoch; told: those that can be told from the
    loader once the digest is right.
    """

    make: Callable[[int], Any]
    position: tuple[str, ...]
    told: tuple[str, ...]


STREAM = ("batch_size", "samples", "data")
PLAIN = ("batches", "batch_size", "samples", "data", "order", "left_out")
KINDS = {
    "exact": Kind(
        lambda workers: balanced("exact", workers),
        ("epoch", "step", "microbatch", "served"),
        (
            *("epoch", "samples", "data", "mode", "samples_per_step", "seed", "shuffle"),
            *("planner", "label_tokens"),
        ),
    ),
    "window": Kind(
        lambda workers: balanced("window", workers), ("epoch", "step", "microbatch", "served"),
        ("samples", "data", "mode", "samples_per_step", "seed", "shuffle", "digest"),
    ),
    "shuffled": Kind(lambda workers: plain(list(range(COUNT)), workers, True), ("batches",), PLAIN),
    "in order": Kind(lambda workers: plain(list(range(COUNT)), workers), ("batches",), PLAIN),
    "stream": Kind(lambda workers: plain(Numbers(), workers), ("batches",), STREAM),
    "sampler": Kind(
        lambda _: sampler(), ("epoch", "given"), ("epoch", "samples", "data", "seed", "shuffle"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """An epoch that nothing interrupts: the ledger before each batch, and what follows from it."""

    ledgers: list[Ledger]
    rest: list[list[Any]]


def deliver(loader: Any) -> list[Any]:
    """Return what is left of an epoch."""
    return [list(batch) for batch in itertools.islice(loader, MOST)]


def whole_run(kind: Kind, start: Ledger | None = None, epoch: int = 0) -> Run:
    """Return an epoch from its beginning; `start` has the seeds of a plain loader."""
    torch.manual_seed(1)
    loader = kind.make(0)
    if start is not None:
        loader.load_state_dict(start)
    elif epoch:
        loader.set_epoch(epoch)
    ledgers, batches = [loader.state_dict()], list[Any]()
    for batch in itertools.islice(loader, MOST):
        batches.append(list(batch))
        ledgers.append(loader.state_dict())
    return Run(ledgers, [batches[done:] for done in range(len(ledgers))])


class Ledgers:
    """The ledgers that are changed, and what must follow from any position."""

    def __init__(self) -> None:
        self.runs = {name: whole_run(kind) for name, kind in KINDS.items()}
        self._epochs: dict[tuple[str, int], Run] = {}

    def expected(self, name: str, ledger: Ledger) -> list[Any] | None:
        """Return what follows from the position that a ledger says; None where there is none."""
        run, kind = self.runs[name], KINDS[name]
        if ledger.get("epoch", 0) != 0:
            place = (name, ledger["epoch"])
            if place not in self._epochs:
                self._epochs[place] = whole_run(kind, epoch=ledger["epoch"])
            run = self._epochs[place]
        if waiting := ledger.get("waiting"):  # what was not handed out (in_order=False) comes first
            top = ledger["batches"] + len(waiting)
            return [run.rest[0][number] for number in waiting] + run.rest[top]
        wanted = [ledger[field] for field in kind.position]
        for each, rest in zip(run.ledgers, run.rest, strict=True):
            if [each[field] for field in kind.position] == wanted:
                return rest
        return None

    def trial(self, random: Random) -> Outcome:
        """Change a ledger and go on from it."""
        name = random.choice(list(KINDS))
        ledgers = self.runs[name].ledgers
        ledger = random.choice(ledgers)
        is_written = random.random() < 0.3
        fields = list(KINDS[name].told if is_written else ledger)
        chosen = random.sample(fields, random.randint(1, min(3, len(fields))))
        changed = dict(ledger)
        for field in chosen:
            change(changed, field, random, [each[field] for each in ledgers])
        if is_written:
            changed = with_digest(changed)
        values = {field: changed.get(field, "(gone)") for field in chosen}
        what = f"{name}{', written so' if is_written else ''}: {values!r:.300}"
        return self.outcome(name, changed, what, int(random.random() < WITH_A_WORKER))

    def outcome(self, name: str, ledger: Ledger, what: str, workers: int) -> Outcome:
        """Return what comes of a ledger."""
        torch.manual_seed(2)
        loader = KINDS[name].make(workers)
        try:
            loader.load_state_dict(ledger)
            found = deliver(loader)
        except (ValueError, LoaderError) as error:
            return named(error, what)
        finally:
            if workers and name != "sampler":
                loader.close()
        if found == self.expected(name, ledger):
            return Outcome("right", what)
        return Outcome("silent", what, f"delivered {found!r:.300}")


def named(error: Exception, what: str) -> Outcome:
    """Return "refused" for an error in one line that names a field, "unclear" for another."""
    text = str(error)
    names = {field for kind in KINDS.values() for field in kind.told} | {
        *(
            "version", "kind", "check", "holes", "left_out", "unusable", "digest", "costs",
            "planner", "ranks",
        ),
        "worker_seed",
        "generators",
        *(
            "sampler", "readers", "num_workers", "auto", "label_tokens", "start", "step",
            "window_step",
        ),
        *("microbatch", "served", "before", "given", "turn", "waiting", "batches", "epoch"),
    }  # fmt: skip
    is_named = any(re.search(rf"\b{name}\b", text) for name in names)
    return Outcome("refused" if is_named and "\n" not in text else "unclear", what, text)


def change(ledger: Ledger, field: str, random: Random, others: Sequence[Any]) -> None:
    """Give a field another value, or take it away."""
    value = ledger[field]
    kinds = ["near", "near", "other", "odd", "gone"]
    match random.choice(kinds), value:
        case "near", bool():
            ledger[field] = not value
        case "near", int():
            ledger[field] = value + random.choice((-1, 1, 1, 2, STEP, -STEP, random.randint(0, 99)))
        case "near", str() if value:
            at = random.randrange(len(value))
            ledger[field] = value[:at] + random.choice("0aZ(") + value[at + 1 :]
        case "near", list():
            ledger[field] = [*value, random.randint(0, COUNT)]
        case "near" | "other", _:
            ledger[field] = random.choice(others)
        case "gone", _ if random.random() < 0.5:
            del ledger[field]
        case _:
            ledger[field] = random.choice(ODD)


def make_trial(_: Path) -> Trial:
    """Return the trial of a target."""
    return Ledgers().trial
