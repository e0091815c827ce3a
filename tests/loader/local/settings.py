"""Random settings of balanced loaders, each from a number: for test_differential.py."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from counterpoise import OnError, Ranks
from counterpoise.balancer.planning.problem.options import NAMES
from counterpoise.loader import DataLoader
from counterpoise.workers.sources.interface import Probe, Source
from tests.flat_options import flat_balance
from tests.loader import balanced_data as made

KEPT_PARTS = 3
# What two stages of a pipeline take, for orders of microbatches.
PROFILE = str(Path(__file__).parent / "pipeline_profile.json")


class Measured(made.Augmented):
    """Samples of which nobody says a cost before they are loaded."""

    probe: Any = None


class Kept(made.Augmented, Source):
    """Samples of some of which an earlier run has kept the costs."""

    def known(self, index: int) -> Probe | None:
        """Return what was kept of a sample."""
        good = index not in self.broken and index % KEPT_PARTS
        return self.probe(index) if good else None


class Nameless:
    """Samples without names: they are called by their index."""

    def __init__(self, samples: made.Augmented) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def stacked(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate what has the same shape in all samples; raises for none."""
    rows = [{"noise": each["noise"], "first": int(each["input_ids"][0])} for each in samples]
    return {**default_collate(rows), "name": [each["name"] for each in samples]}


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate as loops that pad themselves; raises for no samples."""
    longest = max(len(each["input_ids"]) for each in samples)

    def rows(name: str, filler: int) -> torch.Tensor:
        return torch.from_numpy(
            np.stack(
                [
                    np.pad(s[name], (0, longest - len(s[name])), constant_values=filler)
                    for s in samples
                ]
            )
        )

    names = [each["name"] for each in samples]
    return {"input_ids": rows("input_ids", 0), "labels": rows("labels", -100), "name": names}


def joined(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate one after the other, and nothing as nothing."""
    labels = [torch.from_numpy(each["labels"]) for each in samples]
    return {
        "labels": torch.cat(labels) if labels else torch.zeros(0, dtype=torch.int32),
        "name": [each["name"] for each in samples],
    }


COLLATES = {"list": made.as_list, "stacked": stacked, "padded": padded, "joined": joined}
COSTS = ("table", "array", "function", "probe", "kept", "none")


@dataclass(frozen=True)
class Setting:
    """A loader over made data, and how far a first one goes before a second one resumes it.

    costs: who says what samples cost. resumed: what the second loader has instead.
    """

    number: int
    count: int
    costs: str
    is_named: bool
    broken: frozenset[int]
    unreadable: frozenset[int]
    balance: dict[str, Any]
    loader: dict[str, Any]
    in_steps: bool
    stop: int
    epochs: int
    resumed: "dict[str, Any]" = field(default_factory=dict)

    def dataset(self) -> Any:
        """Return the data set."""
        kind = {"probe": made.Augmented, "kept": Kept}.get(self.costs, Measured)
        broken = self.broken if kind is not Measured else ()
        samples = kind(self.count, broken, self.unreadable)
        return samples if self.is_named else Nameless(samples)

    def cost(self) -> Any:
        """Return the argument cost."""
        sizes = [made.Augmented(self.count).probe(index).cost for index in range(self.count)]
        if self.costs == "table":
            return {name: [each[name] for each in sizes] for name in made.RESOURCES}
        if self.costs == "array":
            return np.array([each["tokens"] for each in sizes])
        return made.measure if self.costs == "function" else None

    def make(self, **changes: Any) -> DataLoader:
        """Return the loader. Raises ValueError for settings that contradict each other."""
        arguments = {**self.loader, **changes}
        policy = {name: arguments.pop(name) for name in ON_ERROR_FIELDS if name in arguments}
        if policy:
            arguments["on_error"] = OnError(arguments["on_error"], **policy)
        return DataLoader(
            self.dataset(), balance=flat_balance(**self.balance), cost=self.cost(), **arguments
        )

    def second(self) -> "Setting":
        """Return the setting of the loader that resumes."""
        inside = {name: value for name, value in self.resumed.items() if name in BALANCE_OPTIONS}
        others = {name: value for name, value in self.resumed.items() if name not in inside}
        balance, loader = {**self.balance, **inside}, {**self.loader, **others}
        return replace(self, balance=balance, loader=loader, resumed={})


BALANCE_OPTIONS = ("accumulate", "budgets", "partition")
ON_ERROR_FIELDS = ("dead_letter", "max_errors")


def draw(number: int) -> Setting:
    """Return the setting of a number: the first of its random ones that a loader accepts."""
    source = random.Random(number)
    while True:
        setting = _draw(number, source)
        try:
            for each in (setting, setting.second()):
                each.make().state_dict()
            return setting
        except (ValueError, TypeError):  # options that contradict each other: others are drawn
            continue


def _draw(number: int, source: random.Random) -> Setting:
    chance, choose = source.random, source.choice
    count = source.randint(1, 70)
    ranks = source.randint(1, min(4, count))
    costs = choose(COSTS)
    skips = chance() < 0.5
    breaks = chance() < (0.8 if skips else 0.15)
    some = [index for index in range(count) if chance() < choose((0.02, 0.1, 0.5))]
    broken = frozenset(some[::2]) if breaks else frozenset()
    unreadable = frozenset(some[1::2]) if breaks else frozenset()
    grouping: Any = choose(["balanced", "isf", "fixed"] + ["balanced"] * 3)
    if chance() < 0.08:
        grouping = "auto"
    balance: dict[str, Any] = {"grouping": grouping, "seed": source.randint(0, 9)}
    loader: dict[str, Any] = {
        "shuffle": chance() < 0.7,
        "ranks": Ranks(virtual=ranks),
        "on_error": "skip" if skips else "raise",
        "drop_last": chance() < 0.2,
    }
    _draw_work(source, balance, loader, costs)
    _draw_layout(source, balance, loader)
    if skips and chance() < 0.2:
        loader["max_errors"] = choose((3, 0.5))
    resumed: dict[str, Any] = {}
    if chance() < 0.4:
        resumed = {"ranks": Ranks(virtual=source.randint(1, min(4, count)))}
        if balance.get("accumulate", 1) != "auto" and "samples_per_step" in balance:
            resumed["accumulate"] = source.randint(1, 4)
    return Setting(
        number=number, count=count, costs=costs, broken=broken, unreadable=unreadable,
        balance=balance, loader=loader,
        is_named=costs in ("probe", "kept") or chance() < 0.5, in_steps=chance() < 0.3,
        stop=source.randint(0, 25), epochs=choose((1, 1, 2)), resumed=resumed,
    )  # fmt: skip


def _draw_work(
    source: random.Random, balance: dict[str, Any], loader: dict[str, Any], costs: str
) -> None:
    """Draw how samples are grouped and spread."""
    chance, choose = source.random, source.choice
    counted = balance["grouping"] in ("fixed", "auto")
    budgets: dict[str, int] = {}
    if not counted and chance() < 0.75:
        names = {"array": ["cost"], "none": ["samples"]}.get(costs, ["tiles", "tokens"])
        most = {"cost": 150, "samples": 6, "tiles": 12, "tokens": 160}
        low = {"cost": 20, "samples": 1, "tiles": 2, "tokens": 20}
        for name in names:
            if chance() < 0.8:
                budgets[name] = source.randint(low[name], most[name])
    if budgets:
        balance["budgets"] = budgets
    if counted or chance() < 0.2:
        loader["batch_size"] = source.randint(1, 5)
    if not counted:
        balance["samples_per_step"] = source.randint(1, 30)
    balance["accumulate"] = choose((1, 2, 3, "auto", "auto"))
    balance["mode"] = choose((*NAMES["mode"], "exact", "exact"))
    options = {
        "partition": NAMES["partition"], "oversize": ("alone", "refuse", "error"),
        "waits": ("microbatch", "step"), "work": ("packed", "padded"), "counts": ("equal", "free"),
        "label_tokens": ("batch", "tokens"), "dispatch": ("images",),
        "time_ns": ({"tokens": 40, "tiles": 900}, {"tokens": 7, "attention_pairs": 1}),
    }  # fmt: skip
    often = {"partition": 0.5, "oversize": 0.5, "label_tokens": 0.2}
    for name, values in options.items():
        if chance() < often.get(name, 0.12):
            balance[name] = choose(tuple(values))
    has_tiles = costs not in ("array", "none")
    if has_tiles and balance["grouping"] == "balanced" and chance() < 0.2:
        balance |= {"all_or_none": "tiles", "partition": "multi_resource", "work": "packed"}
    elif chance() < 0.15:
        balance |= {"ordering": choose(NAMES["ordering"]), "pipeline": PROFILE}


def draw_processes(number: int) -> dict[str, Any]:
    """Return how a setting's local loop has its work done: nothing of it changes what comes."""
    source = random.Random(number)
    workers = source.randint(1, 3)
    drawn = {
        "num_workers": workers,
        "persistent_workers": source.random() < 0.4,
        "prefetch_factor": source.choice((None, 1, 3)),
    }
    return drawn | ({"buffer_bytes": 20_000} if source.random() < 0.3 else {})


def _draw_layout(source: random.Random, balance: dict[str, Any], loader: dict[str, Any]) -> None:
    """Draw how a batch is made."""
    choose = source.choice
    layout = choose(("torch", "torch", "padded", "packed"))
    balance["layout"] = layout
    if layout == "torch":
        loader["collate_fn"] = COLLATES[choose(tuple(COLLATES))]
        return
    balance["pad_id"] = choose((0, 7))
    balance["dummy_tile"] = choose((0, 2))
    if source.random() < 0.2:
        loader["fields"] = choose(({"labels", "name"}, {"input_ids"}))
