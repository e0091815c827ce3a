"""Makes the balanced loop over a stream of a DataLoader's arguments, and refuses what has none."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from ...balancer.planning.problem.balance import DEFAULTS, Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.layout import as_layout
from ...balancer.planning.problem.options import Waits
from ...balancer.protocol.job_spec import IN_BATCHES, JobSpec
from ...workers.sources.data_identity import KnownData
from ..balanced.arguments import takes_nothing
from ..balanced.microbatches import BalancedLoader
from ..balanced.settings import BalancedArguments, LoaderSettings, LoopSettings
from ..collate.chosen import BatchMaker
from ..step.ranks import Place
from .loop import StreamLoop
from .pack_loader import PackLoader
from .packing import Limits
from .reader import PackedStream, PackSettings

# The options of a Balance that mean something for a stream; seed: of nothing, as its order is its
# own, but sweeps and frameworks give one to every loader.
OPTIONS = (
    "budgets", "accumulate", "oversize", "seed", "label_tokens", "layout", "work", "shapes",
    "images",
)  # fmt: skip
EXAMPLE = 'balance=cp.Balance(budgets={"tokens": 4096}, layout="packed")'


# Arguments of a DataLoader that have no meaning for one, and their defaults.
WITHOUT_MEANING = {
    "balancer": None, "key": None, "growing_data": False, "decode_threads": 1,
}  # fmt: skip


def check_stream(
    balance: Balance, batch_size: int | None, shuffle: bool | None, arguments: Mapping[str, Any]
) -> None:
    """Raise ValueError where more is asked for than a stream can be packed by.

    arguments: a DataLoader's arguments that torch's does not have.
    """
    if arguments["skip_keys"]:
        raise ValueError("skip_keys is for samples with keys, and those of a stream have none")
    if not balance.budgets:
        raise ValueError(
            "a stream is packed within budgets, as samples that have not come yet cannot be "
            f"planned with, and balance has none: give {EXAMPLE}, or a map-style dataset (for "
            'shards of webdataset cp.TarDataset("shards/*.tar", transform)), or leave balance'
        )
    if balance.accumulate == "auto":
        raise ValueError(
            "accumulate is 'auto', and a stream does not say how many samples a step has: give "
            "the number of packs that each rank has in a step, Balance(accumulate=4), say"
        )
    if batch_size not in (None, 1):
        raise ValueError(
            f"batch_size is {batch_size}, and budgets decide how many samples of a stream a "
            "microbatch has: leave batch_size; Balance(accumulate=...) says how many microbatches "
            "a step has"
        )
    if shuffle:
        raise ValueError(
            "shuffle=True, and a stream has an order of its own: leave shuffle, and let the stream "
            "shuffle (data.shuffle(buffer_size=...) of Hugging Face and webdataset)"
        )
    names = [field.name for field in fields(Balance)] + ["time_ns", "dispatch", "all_or_none"]
    options = {name: getattr(balance, name) for name in names}
    allowed = {"counts": "free"}  # as it is
    meant = {
        name: value
        for name, value in options.items()
        if name not in OPTIONS and value not in (getattr(DEFAULTS, name), allowed.get(name))
    }
    meant |= {
        name: arguments[name]
        for name, default in WITHOUT_MEANING.items()
        if arguments[name] != default
    }
    for name, value in meant.items():
        raise ValueError(
            f"{name} is {value!r}, and a stream is packed as it comes, on each rank by its own "
            f"workers: leave {name}, or give a map-style dataset (options of a Balance that a "
            f"stream has: {', '.join(OPTIONS)})"
        )


def make_stream_loader(
    local: LoaderSettings,
    packs: PackLoader,
    place: Place,
    waits: Waits | None,  # noqa: ARG001
) -> BalancedLoader:
    """Return the loop of a place; ValueError for one that plays, or shares, several ranks.

    packs: those of this rank.
    """
    if len(place.played) > 1 or place.sharers > 1:
        raise ValueError(
            f"this process is {place}, and each rank has a stream of its own: leave "
            "Ranks(virtual=...), and dimensions other than data parallelism in ranks"
        )
    balance = local.arguments.balance
    job = JobSpec(
        # What all ranks must have alike; nothing is planned with it.
        plan=PlanConfig.from_balance(
            balance, ranks=place.ranks, resources=local.resources, drop_last=local.drop_last
        ),
        on_error=local.arguments.on_error.action,
        label_tokens="",
        shift_labels=balance.shift_labels,
    )
    settings = LoopSettings(job, local, place)
    connect: Any = partial(StreamLoop, settings, packs)
    data = partial(KnownData, local.dataset, None)
    return BalancedLoader(settings, connect, data, stream=packs)


def settings_of_stream(
    loader: TorchDataLoader[Any], arguments: BalancedArguments
) -> tuple[LoaderSettings, PackLoader]:
    """Return the settings of the loop over `loader`'s stream; ValueError for what cannot be."""
    balance = arguments.balance
    if arguments.cost is not None and not callable(arguments.cost):
        raise ValueError(
            f"cost is a {type(arguments.cost).__name__}, and samples of a stream have no index in "
            "a table: give a function from a sample to its costs"
        )
    if isinstance(part := arguments.on_error.max_errors, float):
        raise ValueError(
            f"max_errors={part} is a part of the samples, and a stream does not say "
            "how many it has: give a count"
        )
    takes_empty = as_layout(balance.layout) is not None or takes_nothing(arguments.collate_fn)
    batches = BatchMaker(balance, arguments.collate_fn, arguments.fields)
    resources = tuple(balance.budgets)
    sizing = PlanConfig.from_balance(balance, ranks=1, resources=resources).sizing
    padded = tuple(column in sizing.padded for column in range(len(resources)))
    settings = PackSettings(
        limits=Limits(tuple(balance.budgets.values()), padded), sizing=sizing, resources=resources,
        cost=arguments.cost, collate=batches.in_worker, takes_empty=takes_empty,
        oversize=balance.oversize,
        label_tokens=None if balance.label_tokens == IN_BATCHES else balance.label_tokens,
        shift_labels=balance.shift_labels, on_error=arguments.on_error.action,
        most_bytes=arguments.buffer_bytes // max(1, loader.num_workers),
    )  # fmt: skip
    stream, accumulate = PackedStream(loader.dataset, settings), int(balance.accumulate)
    local = LoaderSettings.from_loader(
        loader, arguments, dataset=loader.dataset, source=None, resources=resources,
        batches=batches, takes_empty=takes_empty,
    )  # fmt: skip
    return local, PackLoader(stream, loader, accumulate)
