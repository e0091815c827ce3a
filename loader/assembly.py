"""Makes a balanced loader of a DataLoader's arguments: read from top to bottom.

`read_arguments` checks them, `read_settings` looks at the data, `make_loader` plans for the ranks
of this process once they are known, and `choose_connection` says where microbatches come from: the
local loop, or the way to a balancer. balance="auto" finds its plan first: see automatic.py.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from ..balancer.planning.problem.balance import as_balance
from ..balancer.planning.problem.config import PlanConfig
from ..balancer.planning.problem.layout import as_layout, find_base
from ..balancer.planning.problem.options import Waits
from ..balancer.protocol.job_spec import LABEL_TOKENS, JobSpec
from ..workers.mixture.order import epoch_samples, find_rows
from ..workers.sources.data_identity import KnownData
from ..workers.sources.interface import DEFAULT_COST, Source
from ..workers.sources.plain import as_source
from ..workers.sources.randomness import held_generators
from .balanced.arguments import (
    GivenOrder,
    adopt_waits,
    check_decode_threads,
    check_label_tokens,
    checked_shuffle,
    choose_ranks,
    find_resources,
    read_order,
    refuse_ignored,
    take_seed,
    takes_nothing,
)
from .balanced.microbatches import BalancedLoader, Holes
from .balanced.settings import BalancedArguments, LoaderSettings, LoopSettings, as_balancer
from .balanced.source import MicrobatchSource
from .collate.chosen import BatchMaker, checked_fields
from .local.loop import LocalLoop
from .refused_arguments import is_packed_stream
from .remote_dataset import RemoteDataset
from .step.labels import find_label_source
from .step.ranks import Place, as_ranks

logger = logging.getLogger(__name__)
UNKNOWN = tuple(DEFAULT_COST)
# Bytes of a job that may be costs by which a mixture is ordered; the rest has room besides.
MOST_COSTS = 3 << 20


def read_arguments(
    dataset: Any, batch_size: int | None, shuffle: bool | None, sampler: Any, batch_sampler: Any,
    generator: Any, *, balance: Any, ranks: Any, balancer: Any, skip_keys: Any, fields: Any,
    **more: Any,
) -> BalancedArguments:  # fmt: skip
    """Return a DataLoader's arguments, checked; ValueError for what would have no effect."""
    if skip_keys is not None:
        from .balanced.left_out import checked_keys  # here: few loops leave any out

        skip_keys = checked_keys(skip_keys)
    balance, ranks = as_balance(balance), as_ranks(ranks)
    ranks.check_dispatch(balance.dispatch)
    if is_packed_stream(dataset):
        from .streams.settings import check_stream  # here: other loops need nothing of streams

        arguments = {"balancer": balancer, "skip_keys": skip_keys, **more}
        check_stream(balance, batch_size, shuffle, arguments)
        order, shuffles = GivenOrder(False), False
    else:
        order = read_order(dataset, sampler, batch_sampler, generator, shuffle)
        balance = take_seed(balance, order)
        is_remote = isinstance(dataset, RemoteDataset)
        refuse_ignored(is_remote, balance, batch_size, more["cost"], more["key"])
        shuffles = checked_shuffle(order.shuffle, balance.mode)
    return BalancedArguments(
        balance=balance, shuffle=shuffles, ranks=choose_ranks(ranks, order), follows=order.follows,
        balancer=as_balancer(balancer, isinstance(dataset, Source) and dataset.has_spec),
        skip_keys=skip_keys, fields=checked_fields(fields), **more,
    )  # fmt: skip


def read_settings(loader: TorchDataLoader[Any], arguments: BalancedArguments) -> LoaderSettings:
    """Return the settings of the balanced loader behind `loader`, of a map-style data set.

    Starts no process, opens no connection and looks at no rank. Raises ValueError for arguments
    that contradict each other, or that the data cannot meet. balance="auto" reads no sample here,
    and finds its resources later.
    """
    if arguments.skip_keys and isinstance(loader.dataset, RemoteDataset):
        raise ValueError(
            "skip_keys is looked for in the data set, and a RemoteDataset has no keys here: give "
            "the data set itself, cp.TarDataset(...)"
        )
    dataset, balance = find_rows(loader.dataset), arguments.balance
    remote = isinstance(dataset, RemoteDataset)
    source = None if remote else as_source(dataset, arguments.cost, arguments.key)
    is_remote = arguments.balancer.address is not None
    check_decode_threads(arguments.decode_threads, is_remote, loader.num_workers, source)
    takes_empty = find_base(balance.layout) is not None
    resources: tuple[str, ...] = ()
    label_tokens = balance.label_tokens or LABEL_TOKENS
    if balance.grouping != "auto":
        resources = find_resources(source, balance)
        check_label_tokens(balance, resources)
        # raises for what cannot be planned with any number of ranks
        one_rank = replace(balance, samples_per_step=None)
        PlanConfig.from_balance(
            one_rank, ranks=1, resources=resources, batch_size=loader.batch_size
        )
        takes_empty = takes_empty or (
            as_layout(balance.layout) is None and takes_nothing(arguments.collate_fn)
        )
        label_tokens = find_label_source(source, balance, resources, arguments.collate_fn)
    pins = loader.pin_memory and torch.accelerator.is_available()
    return LoaderSettings.from_loader(
        loader, arguments, dataset=dataset, source=source, resources=resources,
        batches=BatchMaker(balance, arguments.collate_fn, arguments.fields, pins),
        takes_empty=takes_empty, label_tokens=label_tokens,
    )  # fmt: skip


def make_loader(settings: LoaderSettings, place: Place, waits: Waits | None) -> BalancedLoader:
    """Return the balanced loader of a place; ValueError for what its ranks cannot do."""
    balance, resources = settings.arguments.balance, settings.resources
    if resources == UNKNOWN and 0 in place.played and balance.grouping != "fixed":
        logger.warning(
            "nothing is balanced: what a sample of this %s costs is not known, and each counts as "
            "1; give DataLoader(cost=...), a function from a sample to its costs or a table of "
            "them, or a dataset with probe(index)",
            type(settings.dataset).__name__,
        )
    plan = PlanConfig.from_balance(
        adopt_waits(balance, waits), ranks=place.ranks, resources=resources,
        batch_size=settings.batch_size, drop_last=settings.drop_last,
        empty_microbatches=settings.takes_empty,
    )  # fmt: skip
    return make_planned(settings, plan, place)


def make_planned(
    settings: LoaderSettings, plan: PlanConfig, place: Place, auto: str = ""
) -> BalancedLoader:
    """Return the balanced loader of a plan; `auto` is what balance="auto" has found for it."""
    arguments, dataset, source = settings.arguments, settings.dataset, settings.source
    known = lambda: KnownData(dataset, None)  # noqa: E731
    skipped: Callable[[int], Holes] | None = None
    if source is not None:
        if arguments.skip_keys:
            from .balanced.left_out import SkippedSamples  # here, as above

            skipped = SkippedSamples(source, arguments.skip_keys, plan.seed, arguments.shuffle)
        count_now = partial(epoch_samples, source, arguments.shuffle)
        if (count := count_now()) < place.ranks:
            raise ValueError(f"{count} samples cannot feed {place.ranks} ranks: use fewer ranks")
        looked_at = KnownData(dataset, count, source.key).look_at_samples()
        known = lambda: replace(looked_at, samples=count_now())  # noqa: E731
        # Elsewhere a step that lacks samples is left out: `accumulate` says what it needs.
        if plan.accumulate == "auto" or plan.last_step != "whole":
            plan = replace(plan, spares=not plan.empty_microbatches)
    spec = as_source(dataset).spec() if arguments.balancer.address else {}
    held = held_generators(dataset) if 0 in place.played else []
    if held:
        logger.warning(
            "random choices from %s.%s depend on which worker loads which samples: draw from "
            "random's, numpy's or torch's own functions, which are seeded for each sample",
            type(dataset).__name__,
            held[0],
        )
    mixed = None if source is None else source.mixing
    facts = {} if mixed is None else mixed.facts()
    packed = sum(map(len, facts.get("costs", ())))
    if packed > MOST_COSTS and not is_local(settings, place):
        raise ValueError(
            f"the costs by which the mixture is ordered take {packed:,} bytes, and a balancer "
            f'takes {MOST_COSTS:,}, about a million samples: mix by="samples", or leave balancer= '
            "and ranks that several processes share"
        )
    job = JobSpec(
        plan=plan, source=spec, shuffle=arguments.shuffle, on_error=arguments.on_error.action,
        buffer_bytes=arguments.buffer_bytes, label_tokens=settings.label_tokens, mixture=facts,
        shift_labels=arguments.balance.shift_labels,
    )  # fmt: skip
    if is_local(settings, place) and settings.start.workers > 0:
        # torch's own thread pins the batches of a local loop's workers
        settings = replace(settings, batches=replace(settings.batches, pins=False))
    loop = LoopSettings(job, settings, place)
    return BalancedLoader(
        settings=loop, connect=choose_connection(loop), data=known, auto=auto, skipped=skipped,
        sources=() if mixed is None else mixed.names,
    )  # fmt: skip


def is_local(settings: LoaderSettings, place: Place) -> bool:
    """Return whether workers of this process load and collate what the plan gives them."""
    has_data = settings.source is not None
    return has_data and settings.arguments.balancer.address is None and place.sharers == 1


def choose_connection(settings: LoopSettings) -> Callable[[], MicrobatchSource]:
    """Return the maker of the connection: of the local loop, or of the way to a balancer.

    Raises ValueError for keys that are not a trainer's.
    """
    if is_local(settings.local, settings.place):
        return partial(LocalLoop, settings)
    # here: who has no balancer loads nothing of ZeroMQ
    from ..balancer.transport.keys import peer_keys
    from .remote.factory import connect

    keys = settings.local.arguments.balancer.keys
    return partial(connect, settings, None if keys is None else peer_keys(Path(keys), "trainer"))
