"""What the samples of a trial cost: as `balance="auto"` finds it, of more samples than its 64."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.utils.data as torch_data

from ...balancer.planning.forecast import MOST_SAMPLES
from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.layout import Layout
from ...balancer.planning.problem.options import Waits
from ...loader.auto.answer import Question
from ...loader.auto.choice import Choice, PlanTerms, make_source, rounded_costs
from ...loader.auto.first_samples import ask_worker
from ...loader.balanced.settings import WorkerStart
from ...workers.discovery import FIRST, ResourceWork
from ...workers.discovery.fields import find_child
from ...workers.mixture.order import epoch_order
from ...workers.sources.failures import SkippedSample
from ...workers.sources.interface import Source
from ...workers.sources.labels import LABEL_TOKENS
from ...workers.sources.plain import as_source
from ..analyze.plans import KnownCosts
from .subject import Subject, UnusableDataError, first_samples

# Samples that a worker measures at a time.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class TrialCosts:
    """Costs of the samples `indexes`, and what they show.

    loads: only loading shows what a sample costs. broken: samples that could not be used. labels:
    whether "samples" or only "batches" have them, one for each token; "" for none.
    """

    known: KnownCosts
    indexes: tuple[int, ...]
    loads: bool
    broken: tuple[SkippedSample, ...]
    labels: str = ""

    def other_plans(self) -> dict[str, float]:
        """Return a step of other plans, over random order's as it is now, by their code."""
        return self.known.other_plans(', label_tokens="batch"' if self.labels == "batches" else "")


class CostRows:
    """A data set of costs, for torch's workers to measure: (index, costs), or a SkippedSample."""

    def __init__(self, source: Source, resources: tuple[str, ...]) -> None:
        self._source, self._resources = source, resources

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        try:
            cost = self._source.probe(index).cost
        except Exception as error:
            return SkippedSample.from_error(error, self._source.key(index))
        return index, [cost.get(name, 0) for name in self._resources]


def find_costs(
    subject: Subject, ranks: int, accumulate: int, waits: Waits | None, seconds: float,
    progress: Callable[[int], None],
) -> TrialCosts:  # fmt: skip
    """Return what samples cost, as auto finds it; at most some seconds are spent on measuring them.

    progress: called with the number of samples measured so far. Raises UnusableDataError where
    none of the first samples can be used.
    """
    samples, settings = subject.samples, subject.settings
    source, collate = as_source(samples), settings.get("collate_fn")
    terms = PlanTerms(
        Balance("auto", accumulate=accumulate, waits=waits), ranks, settings["batch_size"],
        settings.get("drop_last", False), subject.shuffle,
    )  # fmt: skip
    order = epoch_order(source, 0, 0, subject.shuffle)[:MOST_SAMPLES].tolist()
    question = Question(
        source, samples, None, tuple(order[:FIRST]),
        getattr(collate, "collate_samples", collate) or torch_data.default_collate, terms,
    )  # fmt: skip
    ways = {n: settings[n] for n in ("multiprocessing_context", "worker_init_fn") if n in settings}
    start = WorkerStart(
        settings["num_workers"], context=ways.get("multiprocessing_context"),
        begin=ways.get("worker_init_fn"),
    )  # fmt: skip
    try:
        answer = ask_worker(question, start)
    except ValueError as error:
        if "can be used" not in str(error):
            raise
        raise UnusableDataError(str(error)) from None
    choice = answer.choice
    if answer.labels_shifted:
        terms = replace(
            terms, balance=replace(terms.balance, layout=Layout("torch", shift_labels=False))
        )
        if choice.costs is not None:
            choice = replace(choice, costs={**choice.costs, "shift_labels": False})
    alone, rounding = _split_rounding(choice)
    known: Any = make_source(alone, source, samples, None)
    ways["num_workers"] = settings["num_workers"]
    rows: Any = CostRows(known, choice.resources)
    loader: Any = torch_data.DataLoader(rows, AT_ONCE, sampler=order, collate_fn=list, **ways)
    indexes, costs, broken = list[int](), list[list[int]](), list[SkippedSample]()
    ends = time.perf_counter() + seconds
    for batch in loader if choice.varies else ():
        broken += [row for row in batch if isinstance(row, SkippedSample)]
        for index, row in (row for row in batch if not isinstance(row, SkippedSample)):
            indexes.append(index)
            costs.append(row)
        progress(len(costs))
        if time.perf_counter() > ends and len(costs) >= FIRST:
            break
    table = np.array(costs, np.int64).reshape(len(costs), len(choice.resources))
    labels = "samples" if LABEL_TOKENS in choice.resources else ""
    with suppress(Exception):  # the trial says what is broken
        first = [] if labels else first_samples(samples)
        marked = np.size(find_child(question.collate(first), "labels")) if first else 0
        labels = "batches" if marked > len(first) else labels
    batched = table if known is source else rounded_costs(choice.resources, rounding, table)
    return TrialCosts(
        KnownCosts(choice, terms, batched, alone=table), tuple(indexes), known.decode_first,
        tuple(broken), labels,
    )  # fmt: skip


def _split_rounding(choice: Choice) -> tuple[Choice, tuple[ResourceWork, ...]]:
    """Return a choice by which no sample is rounded up to a multiple, and what rounds them up."""
    found_costs, sizes = choice.found_costs, choice.sizes
    if found_costs is not None:
        found = found_costs.found
        sizes = tuple(ResourceWork(r.name, "padded", r.multiple, 0, r.limit) for r in found)
        found_costs = replace(found_costs, found=tuple(replace(r, multiple=1) for r in found))
        choice = replace(choice, costs=found_costs.to_dict())
    alone = tuple(replace(size, multiple=1) for size in choice.sizes)
    return replace(choice, sizes=alone), tuple(replace(size, extra=0) for size in sizes)
