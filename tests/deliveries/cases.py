"""The delivery cases as tables: data, every balancing option, and the loader's other arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from counterpoise import Ranks
from counterpoise.balancer.planning.problem.options import NAMES
from tests.deliveries import data as made

# A case names what differs from these; a loader gets all of them by name.
OPTIONS = {
    "grouping": "isf", "batch_size": None, "budgets": {"tiles": 12, "tokens": 120},
    "samples_per_step": 16, "accumulate": "auto", "mode": "exact", "partition": "greedy",
    "ordering": "given", "oversize": "alone", "seed": 3,
}  # fmt: skip
ARGUMENTS = {
    "shuffle": True, "drop_last": False, "num_workers": 0, "layout": "padded", "collate_fn": None,
    "pad_id": 0, "dummy_tile": 0, "ranks": Ranks(virtual=2), "on_error": "raise",
    "buffer_bytes": 1 << 30,
}  # fmt: skip
FIXED = {"grouping": "fixed", "batch_size": 2, "budgets": None, "accumulate": 4}
BALANCED = {"grouping": "balanced", "partition": "multi_resource"}
PICTURES = {"budgets": {"tiles": 8, "tokens": 400}, "samples_per_step": 12}
REAL = {"budgets": {"tiles": 24, "tokens": 4096}, "samples_per_step": 64}
LISTS = {"layout": "torch", "collate_fn": list}
SKIP = {"on_error": "skip"}


@dataclass(frozen=True, slots=True)
class Case:
    """A loader: `data` names its dataset (place.open_data), the rest is its arguments."""

    data: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 1

    def all_options(self) -> dict[str, Any]:
        """Return every balancing option by name."""
        return {**OPTIONS, **self.options}

    def all_rest(self) -> dict[str, Any]:
        """Return every other argument by name."""
        return {**ARGUMENTS, **self.rest}


PLAIN_ROWS: list[tuple[str, str, dict[str, Any], int | None]] = [
    ("in order", "records", {"batch_size": 4, "shuffle": False}, None),
    ("shuffled", "records", {"batch_size": 4, "shuffle": True}, None),
    ("generator", "records", {"batch_size": 5, "shuffle": True, "drop_last": True}, 5),
    ("random samples", "drawn", {"batch_size": 3, "shuffle": True}, 6),
    ("skip", "broken records", {"batch_size": 4, "shuffle": True, **SKIP}, 7),
    ("stream", "stream", {"batch_size": 4}, None),
]
# name: (data, arguments, generator's seed or None, epochs)
PLAIN: dict[str, tuple[str, dict[str, Any], int | None, int]] = {
    f"plain, {name}, {workers} workers": (data, {**given, "num_workers": workers}, seed, 2)
    for workers in (0, 2)
    for name, data, given, seed in PLAIN_ROWS
}
# name: (data, arguments, batches before the state is taken)
PLAIN_RESUMED: dict[str, tuple[str, dict[str, Any], int]] = {
    f"plain resumed, {name}, {workers} workers": (
        "records",
        {"batch_size": 4, "shuffle": shuffle, "num_workers": workers},
        3,
    )
    for workers in (0, 2)
    for name, shuffle in [("in order", False), ("shuffled", True)]
}

WITH_WORKERS: list[tuple[str, str, dict[str, Any], dict[str, Any], int]] = [
    ("isf, exact", "sized", {}, {}, 2),
    ("balanced, window", "sized", {**BALANCED, "mode": "window"}, {}, 1),
    ("costs of decoded samples", "unmeasured", {}, {"cost": made.measure}, 1),
    ("skip", "broken sized", {}, SKIP, 2),
    ("rng, shards", "rolled shards", PICTURES, {}, 2),
    ("layout packed, shards", "shards", PICTURES, {"layout": "packed"}, 1),
]
GROUPINGS: list[tuple[str, dict[str, Any]]]
GROUPINGS = [("isf", {}), ("balanced", BALANCED), ("fixed", FIXED)]
LOADED: dict[str, Case] = {
    **{
        f"{grouping}, {mode}": Case("sized", {**options, "mode": mode}, epochs=2)
        for mode in ("exact", "window", "epoch")
        for grouping, options in GROUPINGS
    },
    **{
        f"partition {partition}": Case(
            "sized", {"partition": partition}, {"ranks": Ranks(virtual=3)}
        )
        for partition in NAMES["partition"]
    },
    **{
        f"layout {name}, {data}": Case(data, PICTURES if data == "shards" else {}, rest)
        for data in ("sized", "shards")
        for name, rest in [
            ("torch", LISTS),
            ("padded", {"layout": "padded", "pad_id": 7}),
            ("packed", {"layout": "packed", "pad_id": 7, "dummy_tile": 2}),
        ]
    },
    "accumulate 6, isf": Case("sized", {"accumulate": 6}),
    "accumulate 3, balanced, no budgets": Case(
        "sized", {**BALANCED, "accumulate": 3, "budgets": None}
    ),
    "accumulate auto, balanced": Case("sized", {**BALANCED, "accumulate": "auto"}),
    "accumulate auto, fixed": Case("sized", {**FIXED, "accumulate": "auto"}),
    "another seed": Case("sized", {"seed": 4}),
    "another seed, balanced": Case("sized", {**BALANCED, "seed": 4}),
    "one budget": Case("sized", {**BALANCED, "budgets": {"tokens": 90}}),
    "oversize alone": Case("sized", {"budgets": {"tokens": 38}}),
    "oversize refused": Case("sized", {"budgets": {"tokens": 38}, "oversize": "refuse"}, SKIP),
    "in order": Case("sized", FIXED, {"shuffle": False}, epochs=2),
    "drop_last": Case("sized", FIXED, {"drop_last": True}),
    "drop_last, window": Case("sized", {"mode": "window"}, {"drop_last": True}),
    "one rank": Case("sized", BALANCED, {"ranks": Ranks(virtual=1)}),
    "four ranks": Case("sized", BALANCED, {"ranks": Ranks(virtual=4)}),
    "costs of decoded samples": Case("unmeasured", {}, {"cost": made.measure}),
    "costs in a table": Case("unmeasured", {}, {"cost": made.costs(), "key": "n{}".format}),
    "costs of nobody": Case("list", {**FIXED}, LISTS),
    "little memory": Case("sized", {}, {"buffer_bytes": 6_000}),
    "many, window": Case("many", {"mode": "window"}, LISTS),
    "skip": Case("broken sized", {}, SKIP, epochs=2),
    "skip, window": Case("broken sized", {**BALANCED, "mode": "window"}, SKIP),
    "skip, shards": Case("broken shards", PICTURES, SKIP),
    "rng, shards": Case("rolled shards", PICTURES, epochs=2),
    "global rng, shards": Case("globally rolled shards", PICTURES, LISTS, epochs=2),
    "shards without a transform": Case(
        "bare shards", {**FIXED, "grouping": "isf", "batch_size": None, "accumulate": 2}, LISTS
    ),
    **{
        f"{name}, 2 workers": Case(data, options, {**rest, "num_workers": 2}, epochs)
        for name, data, options, rest, epochs in WITH_WORKERS
    },
}
# In whole steps, by loader.steps().
IN_STEPS: dict[str, Case] = {
    "steps, balanced": Case("sized", BALANCED),
    "steps, skip": Case("broken sized", {}, SKIP),
}
# name: (case, microbatches before the state is taken, case that continues)
RESUMED: dict[str, tuple[Case, int, Case]] = {
    **{
        f"resumed inside an epoch, {mode}": (
            Case("sized", {**BALANCED, "mode": mode}, epochs=2), 5,
            Case("sized", {**BALANCED, "mode": mode}, epochs=2),
        )
        for mode in ("exact", "window", "epoch")
    },
    # 2 ranks with 4 microbatches each make a step of 8
    **{
        f"resumed with {ranks} ranks": (
            Case("sized", FIXED), 16,
            Case("sized", {**FIXED, "accumulate": 8 // ranks}, {"ranks": Ranks(virtual=ranks)}, 2),
        )
        for ranks in (1, 4)
    },
    "resumed with 3 ranks and another accumulate": (
        Case("sized", {"accumulate": 6}), 12,
        Case("sized", {"accumulate": 5}, {"ranks": Ranks(virtual=3)}, 2),
    ),
    "resumed after skipped samples": (
        Case("broken sized", {}, SKIP), 7, Case("broken sized", {}, SKIP, 2),
    ),
    "resumed with 2 workers": (
        Case("sized", FIXED, {"num_workers": 2}), 8,
        Case("sized", {**FIXED, "accumulate": 2}, {"num_workers": 2, "ranks": Ranks(virtual=4)}, 2),
    ),
}  # fmt: skip
# Groupings that the loader has no batch_size for: by a sampler in torch's loader, for each rank.
SAMPLED: dict[str, Case] = {
    **{
        f"sampler, fixed, {mode}": Case("sized", {**FIXED, "mode": mode}, epochs=2)
        for mode in ("exact", "window")
    },
    **{
        f"sampler, {grouping}": Case("sized", {**options, "accumulate": 4}, epochs=2)
        for grouping, options in [("isf", {}), ("balanced", BALANCED)]
    },
    "sampler, many, window": Case("many", {**BALANCED, "mode": "window"}, {"drop_last": True}),
    "sampler, many, epoch": Case("many", {**BALANCED, "mode": "epoch"}),
}
# By workers elsewhere; those in "two ranks" have a loader for each rank.
REMOTE: dict[str, Case] = {
    "remote, isf": Case("remote shards", PICTURES, epochs=2),
    "remote, balanced, window": Case("remote shards", {**PICTURES, **BALANCED, "mode": "window"}),
    "remote, packed, one rank": Case(
        "remote shards", PICTURES, {"layout": "packed", "ranks": Ranks(virtual=1)}
    ),
    "remote, rng": Case("remote rolled shards", PICTURES, epochs=2),
    "remote, skip": Case("remote broken shards", PICTURES, SKIP),
}
TWO_RANKS: dict[str, Case] = {
    "two ranks, remote, isf": Case("remote shards", PICTURES),
    "two ranks, remote, fixed": Case("remote shards", FIXED, {"layout": "packed"}),
}
# Two processes under torch.distributed, with a worker each.
DISTRIBUTED: dict[str, Case] = {
    "two ranks, torch.distributed": Case("sized", {}, {"num_workers": 1}, epochs=2)
}
# Cases that must deliver the same, whoever decodes.
SAME = [
    ("isf, exact", "isf, exact, 2 workers"),
    ("costs of decoded samples", "costs of decoded samples, 2 workers"),
    ("costs of decoded samples", "little memory"),
    ("skip", "skip, 2 workers"),
    ("skip", "resumed after skipped samples"),
    ("balanced, exact", "resumed inside an epoch, exact"),
    ("balanced, window", "resumed inside an epoch, window"),
    ("balanced, epoch", "resumed inside an epoch, epoch"),
    ("rng, shards", "rng, shards, 2 workers"),
    ("rng, shards", "remote, rng"),
    ("skip, shards", "remote, skip"),
]
REAL_LOADED: dict[str, Case] = {
    "real, packed": Case("real shards", REAL, {"layout": "packed", "num_workers": 2}),
    "real, balanced, window, packed": Case(
        "real shard",
        {**REAL, **BALANCED, "mode": "window"},
        {"layout": "packed", "ranks": Ranks(virtual=4)},
    ),
    "real, padded": Case("real shard", {**REAL, **BALANCED}),
}
