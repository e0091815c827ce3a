"""Reads the first samples of epoch 0's order, in a worker, and finds what `auto` has to know.

Nothing of it runs in the trainer: data set and collate function may print, draw random numbers,
or end the process. The worker is started as the loader's others are, and ends with the trainer.
"""

import functools
import logging
import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.options import ADD_UP
from ...balancer.protocol.job_spec import LABEL_TOKENS
from ...workers.discovery import (
    FIRST,
    FoundSource,
    FoundWork,
    find_costs,
    hold_first,
    recognise_work,
)
from ...workers.processes.parent_watch import begin_worker
from ...workers.processes.start_method import quiet_forks, worker_context
from ...workers.sources.costs import sample_nbytes
from ...workers.sources.failures import describe_error, kind_of, load_with_retries
from ...workers.sources.interface import Probe, SampleError, Source, checked_probe
from ..local.workers import WorkerStart
from ..plain.iterators import shared_numbers
from ..plain.torch_names import begin_as_worker
from .choice import Choice, PlanTerms, padded_if_said, said_work
from .forecast import Outlook, forecast

# Collating takes this many microbatches' samples.
COLLATED = 4
logger = logging.getLogger(__name__)
LOG_S, END_S = 10.0, 5.0


@dataclass(frozen=True, slots=True)
class Question:
    """The samples whose costs and work are to be found, and the plan that they are for.

    order: the indices of the first samples in epoch 0's order. knows_costs: `source` says what they
    cost. collate: tried where nobody has said how batches are made. progress: where the worker says
    which sample it is at, plus 1.
    """

    source: Source
    dataset: Any
    key: Callable[[int], str] | None
    order: tuple[int, ...]
    knows_costs: bool
    collate: Callable[[list[Any]], Any]
    terms: PlanTerms
    progress: Any = None

    @property
    def at(self) -> int | None:
        """The index of the sample that the worker is at; None for none."""
        return self.progress[0] - 1 if self.progress is not None and self.progress[0] else None

    @property
    def where(self) -> str:
        """Which sample the worker is at, as the end of a message."""
        return "" if self.at is None else f", and is at sample {self.source.key(self.at)!r}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The choice, what it is forecast to do, and the bytes of a sample that is held until planned.

    held_bytes: the mean; 0 where samples are measured without loading them.
    """

    choice: Choice
    forecast: Outlook | None
    held_bytes: int


def ask_worker(question: Question, start: WorkerStart, timeout_s: float | None = None) -> Answer:
    """Return a worker's answer; ValueError with one line that says why there is none.

    A sample that ends the worker is not looked at again, where `start` allows another worker: the
    run says what becomes of it. Raises TimeoutError, which names the sample, after `timeout_s`.
    """
    if multiprocessing.current_process().daemon:  # which may start no process: nor has it workers
        return answer(question)
    maker: Any = worker_context(start.context) or multiprocessing.get_context()
    question = replace(question, progress=shared_numbers(maker, 1))
    for left in reversed(range(start.restarts + 1)):
        found = _ask(question, maker, start, timeout_s)
        if isinstance(found, Answer):
            return found
        deadly = question.at
        if not left or deadly is None or len(question.order) == 1:
            break
        logger.warning("%s; the first samples are read again without it", found)
        question = replace(question, order=tuple(e for e in question.order if e != deadly))
        question.progress[0] = 0
    raise ValueError(found)


def _ask(
    question: Question, maker: Any, start: WorkerStart, timeout_s: float | None
) -> Answer | str:
    """Return the answer of a new process, or how it ended without one."""
    reading, writing = maker.Pipe(duplex=False)
    worker = maker.Process(target=_answer_to, args=(writing, question, start), daemon=True)
    try:
        try:
            with quiet_forks():
                worker.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"cannot send this to the worker processes: {describe_error(error)}; define it at "
                "the top level of a module, or pass multiprocessing_context='fork', or say how "
                'batches are made: Balance("auto", work="padded")'
            ) from None
        writing.close()  # so that the worker's end is the end of the pipe
        _wait(reading, question, timeout_s)
        try:
            found: Answer | str = reading.recv()
            worker.join(END_S)
        except (EOFError, OSError):
            worker.join()
            status: int = worker.exitcode
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else ""
            how = how or f"ended with status {status}"
            return (
                f"the first samples could not be read: the process that read them {how}"
                f"{question.where}"
            )
    finally:
        reading.close()
        if worker.pid is not None:
            worker.kill()
            worker.join()
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _wait(reading: Connection, question: Question, timeout_s: float | None) -> None:
    """Wait for an answer, or the end of who is asked; TimeoutError after `timeout_s`."""
    since, told_s = time.monotonic(), LOG_S
    while True:
        waited = time.monotonic() - since
        end_s = told_s if timeout_s is None else min(told_s, timeout_s)
        if reading.poll(max(0.0, end_s - waited)):
            return
        if timeout_s is not None and end_s == timeout_s:
            raise TimeoutError(
                f'no batch within {timeout_s:g} s: balance="auto" reads the first samples, to find '
                f"what they cost{question.where}"
            )
        logger.warning(
            'balance="auto" has read the first samples for %.0f s, to find what they cost%s',
            told_s, question.where,
        )  # fmt: skip
        told_s *= 2


def _answer_to(writing: Connection, question: Question, start: WorkerStart) -> None:
    """Send the answer, or in one line why there is none; what a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, who ends this process
    torch.set_num_threads(1)  # the threads of a forked trainer are not here
    found: Answer | str
    try:
        if start.workers:  # with none samples are loaded where there is no worker
            begin_as_worker(question.dataset, start.workers, question.terms.balance.seed)
        begin_worker(start.begin, 0)
        found = answer(question)
    except Exception as error:
        text = str(error) if isinstance(error, ValueError) else describe_error(error)
        found = " ".join(text.split())
    writing.send(found)


def answer(question: Question) -> Answer:
    """Return what the first samples say; ValueError with one line where they cannot be used."""
    choice, rows, held = _known(question) if question.knows_costs else _found(question)
    _, plan = question.terms.plan(choice)
    told = forecast(plan, rows, question.terms.batch_size) if choice.varies else None
    return Answer(choice, told, held)


def _found(question: Question) -> tuple[Choice, Int64, int]:
    """Find the costs in samples that say nothing about them; and their costs (n, resources)."""
    samples = _loaded(question, FIRST)
    found = find_costs(samples)
    if said_work(question.terms.balance) is None:
        work = recognise_work(found, samples, question.collate, question.terms.batch_size)
        found = found.as_batched(work)
        padded, said = work.padded, work.describe()
    else:
        padded, said = padded_if_said(question.terms.balance, found.resources), ""
    said_costs = found.describe() if found.work else "nothing in the samples varies in size"
    choice = Choice(found.to_dict(), found.resources, padded, bool(found.work), said_costs, said)
    rows = [[cost[name] for name in found.resources] for cost in map(found.measure, samples)]
    is_held = bool(found.resources) and FoundSource(question.dataset, found, None).decode_first
    return choice, np.array(rows, dtype=np.int64), _mean_bytes(samples) if is_held else 0


def _known(question: Question) -> tuple[Choice, Int64, int]:
    """Take the costs that the data say, and find out how batches hold them."""
    source: Any = question.source
    is_said = said_work(question.terms.balance) is not None
    is_held = bool(getattr(source, "decode_first", False))
    if is_held:
        samples = _loaded(question, FIRST)
        costs = [checked_probe(Probe("", source.measure(sample))).cost for sample in samples]
    else:
        costs = [each.cost for each in _each(question, FIRST, source.probe)]
        # Batches are made and looked at only where nobody has said whether they are padded.
        samples = [] if is_said else _loaded(question, COLLATED * question.terms.batch_size)
    names = tuple(dict.fromkeys(name for cost in costs for name in cost))
    rows = np.array([[cost.get(name, 0) for name in names] for cost in costs], dtype=np.int64)
    columns = {name: rows[:, k] for k, name in enumerate(names) if name != LABEL_TOKENS}
    varying = {name: column for name, column in columns.items() if np.ptp(column)}
    padded, said = padded_if_said(question.terms.balance, names), ""
    if samples and varying and not is_said:
        first = {name: column[: len(samples)] for name, column in varying.items()}
        padded, said = work_of_columns(first, samples, question.collate, question.terms.batch_size)
    words = ", ".join(varying) if varying else f"all samples cost alike ({', '.join(names)})"
    choice = Choice(None, names, padded, bool(varying), words, said)
    return choice, rows, _mean_bytes(samples) if is_held else 0


def _loaded(question: Question, most: int) -> list[Any]:
    """Return the first samples that load, at least a few, until they are too large to hold."""
    load = functools.partial(question.source.load, epoch=0, seed=question.terms.balance.seed)
    return hold_first(_each(question, most, load), COLLATED * question.terms.batch_size)


def _each(question: Question, most: int, action: Callable[[int], Any]) -> Iterator[Any]:
    """Yield the result of an action for each of the first samples, broken ones left out."""
    reason, count = "", 0
    for index in question.order[:most]:
        try:
            if question.progress is not None:
                question.progress[0] = index + 1
            result = load_with_retries(functools.partial(action, index), time.sleep)
        except Exception as error:
            if kind_of(error) == "io":
                raise
            # What on_error does with it the run says, when its turn comes.
            reason = str(error) if isinstance(error, SampleError) else describe_error(error)
            continue
        finally:
            if question.progress is not None:
                question.progress[0] = 0
        count += 1
        yield result
    if not count:
        raise ValueError(
            f"none of the first {min(most, len(question.order))} samples can be used, the last: "
            f"{reason}"
        )


def _mean_bytes(samples: Sequence[Any]) -> int:
    return sum(map(sample_nbytes, samples)) // len(samples)


def work_of_columns(
    columns: Mapping[str, Int64],
    samples: Sequence[Any],
    collate: Callable[[list[Any]], Any],
    batch_size: int,
) -> tuple[tuple[str, ...], str]:
    """Return which costs are padded, and in words how batches hold each.

    columns: the costs of the samples by name, (n,) each.
    """
    found = find_costs(samples)
    work = recognise_work(found, samples, collate, batch_size)
    measured = [found.measure(sample) for sample in samples]
    like = {name: _like(column, measured) for name, column in columns.items()}
    padded = tuple(name for name in columns if like[name] in work.padded)
    return padded, _said(list(columns), like, work)


def _like(column: np.ndarray, measured: list[dict[str, int]]) -> str:
    """Return the found resource that goes with a known cost sample by sample, "" for none."""
    for name in measured[0]:
        other = np.array([each[name] for each in measured], dtype=np.int64)
        top = int(other.argmax())
        if column[top] and other[top] and (column * other[top] == other * column[top]).all():
            return name
    return ""


def _said(names: Sequence[str], like: Mapping[str, str], work: FoundWork) -> str:
    """Return in words how batches hold the costs of some names."""
    padded = [name for name in names if like[name] in work.padded]
    constant = [name for name in names if like[name] in work.constant]
    unknown = [
        name
        for name in names
        if name not in ADD_UP and (not like[name] or like[name] in work.unrecognised)
    ]
    added = [name for name in names if name not in (*padded, *constant, *unknown)]
    kinds = (
        (padded, "padded"),
        (added, "add up"),
        (constant, "the same in every batch: planned as adding up"),
        (unknown, "not recognised in the batches: planned as adding up"),
    )
    return "; ".join(f"{', '.join(each)} {words}" for each, words in kinds if each)
