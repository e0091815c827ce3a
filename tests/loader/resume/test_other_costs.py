"""A ledger goes on with the configuration that it was written with, or where that decides nothing.

Each case is a random ledger and a random loader that it is given to: other costs (a table, a cost
function, a tokenizer), transforms, data, ranks, workers, budgets, seeds and options of the plan.
What follows is right, the rest of the epoch once and no other steps, or it is refused with the name
of what differs: never other samples without a word.
"""

import json
import logging
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader, LoaderError, StepInfo, assembly
from counterpoise.workers import TarDataset
from counterpoise.workers.sources.interface import Probe
from tests.loader.local.both_ways import by_balancer
from tests.tars import write_tar

FEW, MANY = 30, 1000
SIZES = (40, 43)
STEP = 8
REFUSED = re.compile(
    r"\b(costs?|data|samples|seed|mode|ranks|budgets|samples_per_step|shuffle|label_tokens|auto)\b"
)
# What cannot be planned, with or without a ledger.
IMPOSSIBLE = re.compile("do not fit|cannot feed|over budget|fewer than|larger than its budget")
KINDS = ("table", "function", "probe", "list", "tar")


def tokens(sample: int, version: int) -> int:
    """Return what a sample costs by a tokenizer: of a later version a few cost more, or all do."""
    return 1 + sample * 7919 % 23 + (version == 1 and sample % 10 == 0) + 2 * (version == 2)


def fields_of(sample: int) -> dict[str, Any]:
    """Return a sample as layouts take it."""
    return {"input_ids": np.arange(1 + sample % 5), "number": np.array([sample])}


class Numbers:
    """Samples without keys."""

    def __init__(self, numbers: Sequence[int], version: int) -> None:
        self.numbers, self.version = numbers, version

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return fields_of(self.numbers[index])


class Keyed(Numbers):
    """Samples with keys and a probe, as a data set that tells costs from headers."""

    def key(self, index: int) -> str:
        """Return a sample's name."""
        return f"k{self.numbers[index]}"

    def probe(self, index: int) -> Probe:
        """Return a sample's cost."""
        return Probe(self.key(index), {"tokens": tokens(self.numbers[index], self.version)}, 8)


class Tokenizer:
    """A transform of shards' texts, of some version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def probe(self, raw: dict) -> Probe:
        """Return a sample's cost."""
        cost = len(raw["txt"]) - 1 - int(raw["__key__"]) * 7919 % 23
        return Probe(raw["__key__"], {"tokens": cost + tokens(int(raw["__key__"]), self.version)})

    def __call__(self, raw: dict) -> dict[str, Any]:
        """Return a sample."""
        return fields_of(int(raw["__key__"]))


@dataclass(frozen=True)
class Loader:
    """What a loader is made of.

    kind: of data and costs; changed: what is other in the data; version: of what samples cost.
    batch_size: 0 where budgets decide; auto: whether balance="auto" does.
    """

    kind: str
    mode: Any
    ranks: int
    accumulate: Any
    count: int
    changed: str
    version: int
    seed: int
    budget: int
    batch_size: int
    auto: bool
    shuffle: bool
    layout: Any
    drop_last: bool
    waits: Any
    work: Any
    oversize: Any
    growing: bool
    workers: int = 0

    @classmethod
    def drawn(cls, draw: random.Random) -> "Loader":
        """Draw one."""
        drawn = {name: draw.choice(values) for name, values in CHOICES.items()}
        first = cls(kind=draw.choice(KINDS), changed="", growing=False, **drawn)
        if draw.random() < 0.8:
            first = replace(first, batch_size=0, auto=False)
        return first.valid()

    def valid(self) -> "Loader":
        """Return this one without options that go with no other of its options."""
        found = self
        if found.auto:
            found = replace(found, batch_size=found.batch_size or 2)
        if found.batch_size:
            found = replace(found, mode="exact", waits=None, oversize="alone", work="packed")
            found = replace(found, accumulate=found.accumulate if found.accumulate != "auto" else 2)
        if found.layout != "torch":
            found = replace(found, work=found.layout)
        if found.mode == "epoch":
            found = replace(found, work="packed")
            found = replace(found, layout="torch" if found.layout == "padded" else found.layout)
        return found if found.shuffle or found.mode == "exact" else replace(found, shuffle=True)

    def later(self, draw: random.Random) -> "Loader":
        """Return one that differs in most cases in one or two things, most often in costs."""
        changes: dict[str, Any] = {
            name: draw.choice([each for each in values if each != getattr(self, name)])
            for name, values in CHOICES.items()
        }
        changes["growing"] = True
        # Data without keys, of one class and size, are not told apart.
        if self.kind in ("probe", "list"):
            changes["changed"] = draw.choice(("one", "order", "all"))
        names = {"version"} if draw.random() < 0.4 else set()
        names |= {*draw.sample(sorted(changes), draw.choice((0, 1, 1, 2)))}
        return replace(self, **{name: changes[name] for name in names}).valid()

    @property
    def samples_per_step(self) -> int:
        """The samples of a step; of auto and fixed numbers, a step of all ranks."""
        return self.ranks * self.accumulate * self.batch_size if self.batch_size else STEP

    @property
    def tokens_per_step(self) -> int:
        """The tokens that a step's microbatches hold at most."""
        return self.ranks * (2 if self.accumulate == "auto" else self.accumulate) * self.budget

    @property
    def numbers(self) -> list[int]:
        """The samples by index."""
        first = 1 if self.changed == "all" else 0
        found = list(range(first, first + self.count))
        if self.changed == "order":
            found[3], found[-1] = found[-1], found[3]
        if self.changed == "one":
            found[self.count // 2] = 999
        return found

    def open(self, folder: Path) -> DataLoader:
        """Return the loader."""
        data: Any = Numbers(self.numbers, self.version)
        table: Any = {"tokens": [tokens(number, self.version) for number in self.numbers]}
        given: dict[str, Any] = {"cost": table}
        if self.kind == "function":
            given = {
                "cost": lambda found: {"tokens": tokens(int(found["number"][0]), self.version)}
            }
        elif self.kind == "list":
            data = [fields_of(number) for number in self.numbers]
        elif self.kind == "probe":
            data, given = Keyed(self.numbers, self.version), {}
        elif self.kind == "tar":
            where = folder / str(self.count)
            data, given = TarDataset(str(where / "*.tar"), Tokenizer(self.version), cache=where), {}
        options: dict[str, Any] = {"mode": self.mode, "seed": self.seed, "layout": self.layout}
        if self.auto:
            options |= {"grouping": "auto", "work": self.work}
        elif self.batch_size:
            options["grouping"] = "fixed"
        else:
            options |= {
                "budgets": {"tokens": self.budget}, "samples_per_step": STEP, "waits": self.waits,
                "work": self.work, "oversize": self.oversize,
            }  # fmt: skip
        return DataLoader(
            data, balance=Balance(accumulate=self.accumulate, **options), shuffle=self.shuffle,
            batch_size=self.batch_size or 1, ranks=Ranks(virtual=self.ranks),
            drop_last=self.drop_last,
            collate_fn=list if self.layout == "torch" else None, num_workers=self.workers,
            growing_data=self.growing, **given,
        )  # fmt: skip


CHOICES: dict[str, Sequence[Any]] = {
    "mode": ("exact", "window", "epoch"), "ranks": (1, 2, 4), "accumulate": (2, "auto", "auto"),
    "count": (SIZES[0], SIZES[0], SIZES[1]), "version": (0, 1, 2), "seed": (0, 0, 1),
    "budget": (60, 60, 75), "batch_size": (2, 3), "auto": (False, True),
    "shuffle": (True, True, False), "layout": ("torch", "torch", "packed", "padded"),
    "drop_last": (False, False, False, True), "waits": (None, None, "step"),
    "work": ("packed", "packed", "padded"), "oversize": ("alone", "refuse"),
    "workers": (*[0] * 12, 1, 2),
}  # fmt: skip

# The step and the samples of each microbatch.
Came = list[tuple[int, tuple[int, ...]]]


def outcome(number: int, folder: Path) -> str:
    """Return "same", "right", "refused", "impossible", else what is wrong."""
    draw = random.Random(number)
    first = Loader.drawn(draw)
    second = first.later(draw)
    try:
        before, rest, ledger = some(first.open(folder), draw)
        loader = second.open(folder)
    except (ValueError, LoaderError) as error:
        return "impossible" if IMPOSSIBLE.search(str(error)) else f"unclear at first: {error}"
    try:
        loader.load_state_dict(json.loads(json.dumps(ledger)))
        after = [(info.step, held(batch, info)) for batch, info in loader.with_info()]
    except (ValueError, LoaderError) as error:
        if IMPOSSIBLE.search(str(error)):
            return "impossible"
        return "refused" if REFUSED.search(str(error)) else f"unclear: {error}"
    finally:
        loader.close()
    is_same = replace(second, workers=first.workers) == first
    # Nobody says once more what was left out when the last step had been handed out.
    left_out = loader.left_out if rest else len({*first.numbers} - {*numbers_of(before)})
    wrong = [*faults(second, before, after, left_out)]
    if is_same and after != rest:
        wrong.append("other microbatches")
    is_exact = second.mode == "exact" and second.drop_last == first.drop_last
    is_exact &= not second.growing and second.oversize == first.oversize == "alone"
    if is_exact and samples_of(after) != samples_of(rest):
        wrong.append("other steps")
    if wrong:
        return f"case {number}: {wrong}: {first} with {ledger} to {second}"
    return "same" if is_same else "right"


def faults(loader: Loader, before: Came, after: Came, left_out: int) -> Iterator[str]:
    """Yield in what an epoch is wrong that was begun by one loader and ended by another."""
    found = Counter(numbers_of(before + after))
    missing = {*loader.numbers} - {*found}
    if {*found} - {*loader.numbers} or {*found.values()} - {1}:
        yield f"{[each for each in found if found[each] > 1]} twice, or none of these data"
    size = sum(tokens(each, loader.version) for each in missing)
    is_part = len(missing) < loader.samples_per_step or size < loader.tokens_per_step
    if len(missing) > left_out and not (loader.drop_last and is_part):
        yield f"{sorted(missing)} are missing, and left_out is {left_out}"


def numbers_of(came: Came) -> list[int]:
    """Return all samples that came."""
    return [number for _, numbers in came for number in numbers]


def samples_of(came: Came) -> dict[int, set[int]]:
    """Return the samples of each step."""
    found: dict[int, set[int]] = {}
    for step, numbers in came:
        found.setdefault(step, set()).update(numbers)
    return {step: numbers for step, numbers in found.items() if numbers}


def held(batch: Any, info: StepInfo) -> tuple[int, ...]:
    """Return the samples of a microbatch, by what is in it."""
    if not info.keys:
        return ()
    numbers = batch["number"] if isinstance(batch, dict) else [each["number"] for each in batch]
    return tuple(int(np.asarray(each).item()) for each in numbers)


def some(loader: DataLoader, draw: random.Random) -> tuple[Came, Came, dict[str, Any]]:
    """Take a part of an epoch; return what came, what comes then, and the ledger in between."""
    came, ends, ledgers = Came(), [0], [loader.state_dict()]
    for batch, info in loader.with_info():
        came.append((info.step, held(batch, info)))
        ledgers.append(loader.state_dict())
        if info.last and info.rank == info.ranks - 1:
            ends.append(len(came))
    loader.close()
    # The end of the epoch, its beginning, between steps, or anywhere.
    at = draw.choice((len(came), 0, *[draw.choice(ends)] * 2, *[draw.randrange(len(ledgers))] * 4))
    if ledgers[at]["epoch"]:
        return [], [], ledgers[at]
    return came[:at], came[at:], ledgers[at]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards of each size."""
    path = tmp_path_factory.mktemp("shards")
    for count in SIZES:
        (path / str(count)).mkdir()
        for shard in range(2):
            samples = range(shard * count // 2, (shard + 1) * count // 2)
            texts = {f"{each:04}.txt": b"t" * (1 + each * 7919 % 23) for each in samples}
            write_tar(path / str(count) / f"{shard}.tar", texts)
    return path


def check(numbers: Sequence[int], folder: Path) -> None:
    logging.disable(logging.WARNING)
    try:
        found = Counter(outcome(number, folder) for number in numbers)
    finally:
        logging.disable(logging.NOTSET)
    wrong = {*found} - {"same", "right", "refused", "impossible"}
    assert not wrong, "\n".join(sorted(wrong))
    assert min(found[each] for each in ("same", "right", "refused")) > len(numbers) // 10, found


@pytest.mark.parametrize("by", ["a local loop", "a balancer"])
@pytest.mark.parametrize(
    "numbers", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.long)]
)
def test_a_ledger_goes_on_rightly_or_is_refused_by_name(
    by: str, numbers: range, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "a balancer":
        monkeypatch.setattr(assembly, "choose_connection", by_balancer)
    check(numbers, folder)
