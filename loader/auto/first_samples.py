"""Reads the first samples of epoch 0's order, in a worker, and finds what `auto` has to know.

Nothing here runs in the trainer: data set and collate function may print, draw random numbers,
or end the process.
"""

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.balance import Balance
from ...balancer.protocol.job_spec import LABEL_TOKENS
from ...workers.discovery import find_costs, recognise_work
from ...workers.sources.failures import describe_error, kind_of, load_with_retries
from ...workers.sources.interface import (
    Probe,
    SampleError,
    Source,
    checked_probe,
    sample_nbytes,
)
from .choice import Choice
from .forecast import Outlook, forecast
from .known_costs import work_of_columns
from .resolve import FoundSource, padded_if_said, plan_of, said_work

# Samples that are looked at, and the bytes of them that are held; collating takes this many
# microbatches' samples.
FIRST, FIRST_BYTES, COLLATED = 64, 1 << 28, 4


@dataclass(frozen=True, slots=True)
class Question:
    """The samples whose costs and work are to be found, and the plan that they are for.

    order: the indices of the first samples in epoch 0's order. knows_costs: `source` says what they
    cost. collate: tried where nobody has said how batches are made.
    """

    source: Source
    dataset: Any
    key: Callable[[int], str] | None
    order: tuple[int, ...]
    knows_costs: bool
    collate: Callable[[list[Any]], Any]
    balance: Balance
    ranks: int
    batch_size: int
    drop_last: bool
    shuffle: bool
    model_times: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The choice, what it is forecast to do, and the bytes of a sample that is held until planned.

    held_bytes: the mean; 0 where samples are measured without loading them.
    """

    choice: Choice
    forecast: Outlook | None
    held_bytes: int

    def to_values(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Answer":
        """Return the answer that was made into JSON values."""
        told = values["forecast"]
        choice = Choice.from_json(json.dumps(values["choice"]))
        return cls(choice, None if told is None else Outlook(**told), values["held_bytes"])


def answer(question: Question) -> Answer:
    """Return what the first samples say; ValueError with one line where they cannot be used."""
    choice, rows, held = _known(question) if question.knows_costs else _found(question)
    _, plan = plan_of(
        choice,
        question.balance,
        ranks=question.ranks,
        batch_size=question.batch_size,
        drop_last=question.drop_last,
        shuffle=question.shuffle,
        model_times=question.model_times,
    )
    told = forecast(plan, rows, question.batch_size) if choice.varies else None
    return Answer(choice, told, held)


def _found(question: Question) -> tuple[Choice, Int64, int]:
    """Find the costs in samples that say nothing about them; and their costs (n, resources)."""
    samples = _loaded(question, FIRST)
    found = find_costs(samples)
    if said_work(question.balance) is None:
        work = recognise_work(found, samples, question.collate, question.batch_size)
        found = found.as_batched(work)
        padded, said = work.padded, work.describe()
    else:
        padded, said = padded_if_said(question.balance, found.resources), ""
    said_costs = found.describe() if found.work else "nothing in the samples varies in size"
    choice = Choice(found.to_dict(), found.resources, padded, bool(found.work), said_costs, said)
    rows = [[cost[name] for name in found.resources] for cost in map(found.measure, samples)]
    is_held = bool(found.resources) and FoundSource(question.dataset, found, None).decode_first
    return choice, np.array(rows, dtype=np.int64), _mean_bytes(samples) if is_held else 0


def _known(question: Question) -> tuple[Choice, Int64, int]:
    """Take the costs that the data say, and find out how batches hold them."""
    costs, samples = _known_costs(question)
    names = tuple(dict.fromkeys(name for cost in costs for name in cost))
    rows = np.array([[cost.get(name, 0) for name in names] for cost in costs], dtype=np.int64)
    columns = {name: rows[:, k] for k, name in enumerate(names) if name != LABEL_TOKENS}
    varying = {name: column for name, column in columns.items() if np.ptp(column)}
    padded, said = padded_if_said(question.balance, names), ""
    # Batches are made and looked at only where nobody has said whether they are padded.
    if samples and varying and said_work(question.balance) is None:
        first = {name: column[: len(samples)] for name, column in varying.items()}
        padded, said = work_of_columns(first, samples, question.collate, question.batch_size)
    words = ", ".join(varying) if varying else f"all samples cost alike ({', '.join(names)})"
    choice = Choice(None, names, padded, bool(varying), words, said)
    is_held = bool(getattr(question.source, "decode_first", False))
    return choice, rows, _mean_bytes(samples) if is_held else 0


def _known_costs(question: Question) -> tuple[list[dict[str, int]], list[Any]]:
    """Return the costs of the first samples, and those samples that had to be loaded."""
    source: Any = question.source
    if getattr(source, "decode_first", False):
        samples = _loaded(question, FIRST)
        found = [checked_probe(Probe("", source.measure(sample))) for sample in samples]
        return [each.cost for each in found], samples
    costs = [each.cost for each in _each(question, FIRST, source.probe)]
    if said_work(question.balance) is not None:
        return costs, []
    return costs, _loaded(question, COLLATED * question.batch_size)


def _loaded(question: Question, most: int) -> list[Any]:
    """Return the first samples that load, at least a few, until they are too large to hold."""
    load = functools.partial(question.source.load, epoch=0, seed=question.balance.seed)
    held, samples = 0, []
    for sample in _each(question, most, load):
        samples.append(sample)
        held += sample_nbytes(sample)
        if held > FIRST_BYTES and len(samples) >= COLLATED * question.batch_size:
            break
    return samples


def _each(question: Question, most: int, action: Callable[[int], Any]) -> Iterator[Any]:
    """Yield the result of an action for each of the first samples, broken ones left out."""
    reason, count = "", 0
    for index in question.order[:most]:
        try:
            result = load_with_retries(functools.partial(action, index), time.sleep)
        except Exception as error:
            if kind_of(error) == "io":
                raise
            # What on_error does with it the run says, when its turn comes.
            reason = str(error) if isinstance(error, SampleError) else describe_error(error)
            continue
        count += 1
        yield result
    if not count:
        raise ValueError(
            f"none of the first {min(most, len(question.order))} samples can be used, the last: "
            f"{reason}"
        )


def _mean_bytes(samples: Sequence[Any]) -> int:
    return sum(map(sample_nbytes, samples)) // len(samples)
