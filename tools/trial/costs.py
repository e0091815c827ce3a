"""What the samples of a trial cost, and the step that is foretold from it.

Costs are found as `balance="auto"` finds them, then measured of as many samples as time allows: the
forecast is auto's own, from more than its 64 samples.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.utils.data as torch_data

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.balance import Balance
from ...loader.auto.answer import Question
from ...loader.auto.choice import Choice, PlanTerms, source_of
from ...loader.auto.first_samples import ask_worker
from ...loader.auto.forecast import MOST_SAMPLES, Outlook, forecast
from ...loader.balanced.settings import WorkerStart
from ...workers.discovery import FIRST
from ...workers.discovery.fields import part_at
from ...workers.mixture.order import epoch_order
from ...workers.sources.failures import SkippedSample
from ...workers.sources.interface import Source
from ...workers.sources.labels import LABEL_TOKENS
from ...workers.sources.plain import as_source
from .subject import Subject, UnusableDataError, first_samples

# Steps that are planned for a forecast, and samples that a worker measures at a time.
STEPS, AT_ONCE = 64, 8


@dataclass(frozen=True, slots=True)
class TrialCosts:
    """What was found: auto's choice, and the costs (n, resources) of the samples `indexes`.

    loads: only loading shows what a sample costs. broken: samples that could not be used. labels:
    whether "samples" or only "batches" have them, one for each token; "" for none.
    """

    choice: Choice
    terms: PlanTerms
    indexes: tuple[int, ...]
    rows: Int64
    loads: bool
    broken: tuple[SkippedSample, ...]
    labels: str = ""

    def foretell(self, padded: bool = True, **changed: Any) -> Outlook | None:
        """Return auto's forecast for these costs, with options of its Balance changed.

        padded: False as if batches that are padded were packed, random order's too.
        """
        if not (self.choice.varies and len(self.rows)):
            return None
        terms = replace(self.terms, balance=replace(self.terms.balance, **changed))
        choice = self.choice if padded else replace(self.choice, padded=())
        return forecast(terms.plan(choice)[1], self.rows, terms.batch_size, STEPS)

    def other_plans(self) -> dict[str, float]:
        """Return a step of other plans, over random order's as it is now, by their code."""
        accumulate = self.terms.balance.accumulate
        more = f", accumulate={accumulate}" if accumulate != 1 else ""
        more += "" if self.terms.balance.shift_labels else ", shift_labels=False"
        counted = ', label_tokens="batch"' if self.labels == "batches" else ""
        free = f'cp.Balance("auto"{more}, counts="free"{counted})'
        told = {free: self.foretell(counts="free")}
        if accumulate == 1:
            told[f'cp.Balance("auto", accumulate=4{more})'] = self.foretell(accumulate=4)
        times = {code: each.time for code, each in told.items() if each is not None}
        now, packed = self.foretell(), self.foretell(padded=False)
        if self.choice.padded and now is not None and packed is not None:
            # random order's step without padding, over its step with it
            shorter = (1 - now.padding_random) * (1 - now.waited) / (1 - packed.waited)
            times[f'cp.Balance("auto"{more}, layout="packed")'] = packed.time * shorter
        return times


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
    subject: Subject, ranks: int, accumulate: int, seconds: float, told: Callable[[int], None]
) -> TrialCosts:
    """Return what samples cost, as auto finds it; at most some seconds are spent on measuring them.

    told: called with the number of samples measured so far. Raises UnusableDataError where none of
    the first samples can be used.
    """
    samples, settings = subject.samples, subject.settings
    source, collate = as_source(samples), settings.get("collate_fn")
    terms = PlanTerms(
        Balance("auto", accumulate=accumulate), ranks, settings["batch_size"],
        settings.get("drop_last", False), subject.shuffle,
    )  # fmt: skip
    order = epoch_order(source, 0, 0, subject.shuffle)[:MOST_SAMPLES].tolist()
    question = Question(
        source, samples, None, tuple(order[:FIRST]), source.knows_costs,
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
        terms = replace(terms, balance=replace(terms.balance, shift_labels=False))
        if choice.costs is not None:
            choice = replace(choice, costs={**choice.costs, "shift_labels": False})
    known: Any = source_of(choice, source, samples, None)
    rows: Any = CostRows(known, choice.resources)
    ways["num_workers"] = settings["num_workers"]
    loader: Any = torch_data.DataLoader(rows, AT_ONCE, sampler=order, collate_fn=list, **ways)
    indexes, costs, broken = list[int](), list[list[int]](), list[SkippedSample]()
    ends = time.perf_counter() + seconds
    for some in loader if choice.varies else ():
        broken += [each for each in some if isinstance(each, SkippedSample)]
        for index, row in (each for each in some if not isinstance(each, SkippedSample)):
            indexes.append(index)
            costs.append(row)
        told(len(costs))
        if time.perf_counter() > ends and len(costs) >= FIRST:
            break
    table = np.array(costs, np.int64).reshape(len(costs), len(choice.resources))
    loads = known.decode_first
    labels = "samples" if LABEL_TOKENS in choice.resources else ""
    with suppress(Exception):  # the trial says what is broken
        some = [] if labels else first_samples(samples)
        batched = np.size(part_at(question.collate(some), "labels")) if some else 0
        labels = "batches" if batched > len(some) else labels
    return TrialCosts(choice, terms, tuple(indexes), table, loads, tuple(broken), labels)
