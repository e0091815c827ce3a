"""Answers what `auto` has to know of a data set, from the first samples of epoch 0's order.

The processes that read them are in first_samples.py.
"""

import functools
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ...balancer.planning.forecast import Outlook, forecast
from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.options import ADD_UP, list_padded
from ...balancer.protocol.job_spec import LABEL_TOKENS
from ...workers.collate.labels import read_batch_labels
from ...workers.discovery import (
    FIRST,
    FoundSource,
    FoundWork,
    ResourceWork,
    find_costs,
    hold_first,
    recognise_work,
    telling_samples,
)
from ...workers.sources.costs import sample_nbytes
from ...workers.sources.failures import classify_failure, describe_error, load_with_retries
from ...workers.sources.interface import Probe, SampleError, Source, checked_probe
from ...workers.sources.labels import find_labels
from .choice import Choice, PlanTerms, read_work, rounded_costs

# Samples of so many microbatches are held, however large they are.
COLLATED = 4


@dataclass(frozen=True, slots=True)
class Question:
    """The samples whose costs and work are to be found, and the plan that they are for.

    order: the indices of the first samples in epoch 0's order. collate: tried where it is not
    said how batches are made. progress: where the worker says which sample it is at, plus 1.
    readers: pipes from the processes that read for it: of samples that are loaded the first is its
    own, the second the first reader's, and so on in turns.
    """

    source: Source
    dataset: Any
    key: Callable[[int], str] | None
    order: tuple[int, ...]
    collate: Callable[[list[Any]], Any]
    terms: PlanTerms
    progress: Any = None
    readers: tuple[Connection, ...] = ()

    @property
    def at(self) -> int | None:
        """The index of the sample that the worker is at; None for none."""
        return self.progress[0] - 1 if self.progress is not None and self.progress[0] else None

    @property
    def progress_text(self) -> str:
        """The sample that the worker is at, as the end of a message."""
        return "" if self.at is None else f", and is at sample {self.source.key(self.at)!r}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The choice, what it is forecast to do, and the bytes of a sample that is held until planned.

    held_bytes: the mean; 0 where samples are measured without loading them. labels_shifted: whether
    labels are seen to be the next tokens already.
    """

    choice: Choice
    forecast: Outlook | None
    held_bytes: int
    labels_shifted: bool = False


@dataclass(frozen=True, slots=True)
class Unread:
    """In place of a sample that cannot be used, and why; is_fatal: nor can any other."""

    why: str
    is_fatal: bool


def answer(question: Question) -> Answer:
    """Return what the first samples say; ValueError with one line where they cannot be used."""
    find = _take_costs if question.source.knows_costs else _find_costs
    choice, rows, held, shifted = find(question)
    _, plan = question.terms.plan(choice)
    outlook = forecast(plan, rows, question.terms.batch_size) if choice.varies else None
    return Answer(choice, outlook, held, shifted)


def _find_costs(question: Question) -> tuple[Choice, Int64, int, bool]:
    """Find the costs in samples that say nothing about them; and their costs (n, resources)."""
    samples = _loaded(question, FIRST)
    costs, unknown = find_costs(samples), tuple[str, ...]()
    costs = replace(costs, shift_labels=question.terms.balance.shift_labels)
    costs_text = costs.describe()
    if read_work(question.terms.balance) is None:
        work = recognise_work(costs, samples, question.collate, question.terms.batch_size)
        costs = costs.as_batched(work)
        padded, unknown, work_text = work.padded, work.unrecognised, work.describe()
    else:
        padded, work_text = list_padded(read_work(question.terms.balance), costs.resources), ""
    if costs.work:
        costs_text = costs.describe()
    elif not unknown:
        costs_text = "nothing in the samples varies in size"
    choice = Choice(
        costs.to_dict(), costs.resources, padded, bool(costs.work), costs_text, work_text, unknown
    )  # fmt: skip
    rows = [[cost[name] for name in costs.resources] for cost in map(costs.measure, samples)]
    is_held = bool(costs.resources) and FoundSource(question.dataset, costs, None).decode_first
    held = _mean_bytes(samples) if is_held else 0
    return choice, np.array(rows, dtype=np.int64), held, are_shifted(samples)


def _take_costs(question: Question) -> tuple[Choice, Int64, int, bool]:
    """Take the costs that the data say, and find out how batches hold them."""
    source = question.source
    balance, size = question.terms.balance, question.terms.batch_size
    is_said = read_work(balance) is not None
    is_held = source.decode_first
    if is_held:
        samples = _loaded(question, FIRST)
        costs = [checked_probe(Probe("", source.measure(sample))).cost for sample in samples]
        sampled = costs
    else:
        probed = {index: probe.cost for index, probe in _iterate(question, FIRST, source.probe)}
        costs = [*probed.values()]
        # Batches are made and looked at only where it is not said whether they are padded.
        shown = () if is_said else sorted(telling_samples([sum(cost.values()) for cost in costs]))
        question = replace(question, order=tuple([*probed][k] for k in shown))
        loaded = _iterate(question, len(shown), loads(question)) if shown else ()
        pairs = hold_first(loaded, COLLATED * size)
        samples, sampled = [sample for _, sample in pairs], [probed[index] for index, _ in pairs]
    names = tuple(dict.fromkeys(name for cost in costs for name in cost))
    rows = np.array([[cost.get(name, 0) for name in names] for cost in costs], dtype=np.int64)
    varying = [n for n, k in zip(names, rows.T, strict=True) if n != LABEL_TOKENS and np.ptp(k)]
    padded, unknown, work_text = list_padded(read_work(balance), names), tuple[str, ...](), ""
    sizes = tuple[ResourceWork, ...]()
    if samples and varying and not is_said:
        columns = {name: [cost.get(name, 0) for cost in sampled] for name in varying}
        work = recognise_work(columns, samples, question.collate, size)
        # Tiles and images always add up, whatever holds them.
        always = (ResourceWork(n, "packed") if n in ADD_UP else work.find(n) for n in varying)
        work = FoundWork(tuple(filter(None, always)))
        padded, unknown, work_text = work.padded, work.unrecognised, work.describe()
        plain = {ResourceWork(resource.name, resource.work) for resource in work.resources}
        sizes = tuple(resource for resource in work.resources if resource not in plain)
        rows = rounded_costs(names, sizes, rows)
    words = ", ".join(varying) if varying else f"all samples cost alike ({', '.join(names)})"
    choice = Choice(None, names, padded, {*varying} > {*unknown}, words, work_text, unknown, sizes)
    return choice, rows, _mean_bytes(samples) if is_held else 0, are_shifted(samples)


def are_shifted(samples: Sequence[Any]) -> bool:
    """Return whether samples' labels are seen to be the next tokens already.

    >>> are_shifted([{"input_ids": np.array([5, 6, 7]), "labels": np.array([6, 7, 8])}])
    True
    """
    labelled = [sample for sample in samples if find_labels(sample) is not None]
    texts = [sample for sample in labelled if "input_ids" in sample]
    rows = ({n: np.asarray(text[n])[None] for n in ("input_ids", "labels")} for text in texts)
    return {labels[2] for labels in map(read_batch_labels, rows) if labels} - {""} == {"before"}


def _loaded(question: Question, most: int) -> list[Any]:
    """Return the first samples that load, at least a few, until they are too large to hold."""
    pairs = _iterate(question, most, loads(question), question.readers)
    return hold_first((sample for _, sample in pairs), COLLATED * question.terms.batch_size)


def loads(question: Question) -> Callable[[int], Any]:
    """Return what loads the sample at an index, as in epoch 0."""
    return functools.partial(question.source.load, epoch=0, seed=question.terms.balance.seed)


def _iterate(
    question: Question, most: int, action: Callable[[int], Any], readers: Sequence[Connection] = ()
) -> Iterator[tuple[int, Any]]:
    """Yield index and result of an action for each of the first samples, broken ones left out.

    readers: processes that do it, too, for samples in turns.
    """
    reason, count = "", 0
    for place, index in enumerate(question.order[:most]):
        if question.progress is not None:
            question.progress[0] = index + 1
        turn = place % (1 + len(readers))
        result = _receive(readers[turn - 1]) if turn else None
        if result is None:
            result = attempt(action, index)
        if question.progress is not None:
            question.progress[0] = 0
        if not isinstance(result, Unread):
            count += 1
            yield index, result
        elif result.is_fatal:
            raise ValueError(result.why)
        else:
            # What on_error does with it the run says, when its turn comes.
            reason = result.why
    if not count:
        raise ValueError(
            f"none of the first {min(most, len(question.order))} samples can be used, the last: "
            f"{reason}"
        )


def attempt(action: Callable[[int], Any], index: int) -> Any:
    """Return the result of an action for a sample, or why there is none."""
    try:
        return load_with_retries(functools.partial(action, index), time.sleep)
    except Exception as error:
        if classify_failure(error) == "io":
            return Unread(describe_failure(error), True)
        is_known = isinstance(error, SampleError)
        return Unread(str(error) if is_known else describe_error(error), False)


def describe_failure(error: Exception) -> str:
    """Return what an error says, and of which kind it is where that is not a caller's mistake."""
    return str(error) if isinstance(error, ValueError) else describe_error(error)


def _receive(reader: Connection) -> Any:
    """Return what a reader sends, None for what cannot be sent.

    If it has ended, this process ends, too, while it says which sample it is at.
    """
    try:
        sent = reader.recv_bytes()
    except (EOFError, OSError):
        sys.exit()
    try:
        return pickle.loads(sent)
    except Exception:
        return None


def _mean_bytes(samples: Sequence[Any]) -> int:
    return sum(map(sample_nbytes, samples)) // len(samples)
