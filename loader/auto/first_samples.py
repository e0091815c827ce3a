"""The processes that read the first samples of epoch 0's order, for what `auto` has to know.

Nothing of it runs in the trainer: data set and collate function may print, draw random numbers,
or end the process. The workers are started as the loader's others are, and end with the trainer.
One finds the answer; the others only read samples for it, in turns, and it takes them in their
order: what is found is the same with any number of workers.
"""

import logging
import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from ...workers.processes.ending import begin_worker
from ...workers.processes.start_method import quiet_forks, shared_numbers, worker_context
from ...workers.sources.failures import describe_error
from ..balanced.settings import WorkerStart
from ..plain.torch_names import begin_as_worker
from .answer import Answer, Question, Unread, answer, attempt, describe_failure, loads

logger = logging.getLogger(__name__)
LOG_S, END_S = 10.0, 5.0
# So many processes read at most: to fork one takes some ten milliseconds.
MOST_READERS = 8


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
        outcome = _ask(question, maker, start, timeout_s)
        if isinstance(outcome, Answer):
            return outcome
        deadly = question.at
        if not left or deadly is None or len(question.order) == 1:
            break
        logger.warning("%s; the first samples are read again without it", outcome)
        question = replace(question, order=tuple(e for e in question.order if e != deadly))
        question.progress[0] = 0
    raise ValueError(outcome)


def _ask(
    question: Question, maker: Any, start: WorkerStart, timeout_s: float | None
) -> Answer | str:
    """Return the answer of new processes, or how they ended without one."""
    started: list[tuple[Any, Connection]] = []  # the one that finds it is the last
    try:
        for number in range(1, _count_readers(question, start)):
            started += [_start(maker, _send_samples, question, start, number)]
        question = replace(question, readers=tuple(reading for _, reading in started))
        started.append(_start(maker, _send_answer, question, start))
        finder, reading = started[-1]
        _wait(reading, question, timeout_s)
        try:
            outcome: Answer | str = reading.recv()
            finder.join(END_S)
        except (EOFError, OSError):
            finder.join()
            ended = finder
            if not finder.exitcode and question.at is not None:  # a reader has ended
                ended, _ = started[question.order.index(question.at) % len(started) - 1]
                ended.join(END_S)
            status: int = ended.exitcode or 0
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else ""
            how = how or f"ended with status {status}"
            where = question.progress_text
            return f"the first samples could not be read: the process that read them {how}{where}"
    finally:
        for process, reading in started:
            reading.close()
            process.kill()
        for process, _ in started:
            process.join()
    if isinstance(outcome, str):
        raise ValueError(outcome)
    return outcome


def _count_readers(question: Question, start: WorkerStart) -> int:
    """Return how many processes load samples: one where few are loaded, or processes start clean.

    To import everything takes a new process longer than it takes to load most samples.
    """
    loads_all = not question.source.knows_costs or question.source.decode_first
    if not (loads_all and start.forks):
        return 1
    return max(1, min(start.workers, len(question.order), MOST_READERS))


def _start(maker: Any, does: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Start a process that is given the end of a pipe; return it, and the end to read from."""
    reading, writing = maker.Pipe(duplex=False)
    process = maker.Process(target=does, args=(writing, *arguments), daemon=True)
    try:
        with quiet_forks():
            process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"cannot send this to the worker processes: {describe_error(error)}; define it at "
            "the top level of a module, or pass multiprocessing_context='fork', or say how "
            'batches are made: Balance("auto", work="padded")'
        ) from None
    finally:
        writing.close()  # so that the process' end is the end of the pipe
    return process, reading


def _wait(reading: Connection, question: Question, timeout_s: float | None) -> None:
    """Wait for an answer, or the end of the asked process; TimeoutError after `timeout_s`."""
    since, told_s = time.monotonic(), LOG_S
    while True:
        waited = time.monotonic() - since
        end_s = told_s if timeout_s is None else min(told_s, timeout_s)
        if reading.poll(max(0.0, end_s - waited)):
            return
        if timeout_s is not None and end_s == timeout_s:
            raise TimeoutError(
                f'no batch within {timeout_s:g} s: balance="auto" reads the first samples, to find '
                f"what they cost{question.progress_text}"
            )
        logger.warning(
            'balance="auto" has read the first samples for %.0f s, to find what they cost%s',
            told_s, question.progress_text,
        )  # fmt: skip
        told_s *= 2


def _send_answer(writing: Connection, question: Question, start: WorkerStart) -> None:
    """Send the answer, or in one line why there is none; what a worker process does."""
    outcome: Answer | str
    try:
        _begin(question, start, 0)
        outcome = answer(question)
    except Exception as error:
        outcome = " ".join(describe_failure(error).split())
    writing.send(outcome)


def _send_samples(writing: Connection, question: Question, start: WorkerStart, number: int) -> None:
    """Send this process' samples, as `attempt` returns them: the work of the other processes.

    No bytes for what cannot be pickled.
    """
    try:
        _begin(question, start, number)
    except Exception as error:
        writing.send_bytes(pickle.dumps(Unread(describe_failure(error), True)))
        return
    load = loads(question)
    for index in question.order[number :: _count_readers(question, start)]:
        try:
            sent = pickle.dumps(attempt(load, index))
        except Exception:
            sent = b""
        try:
            writing.send_bytes(sent)
        except OSError:
            return  # the process that finds the answer has enough


def _begin(question: Question, start: WorkerStart, number: int) -> None:
    """Make this process a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, which ends this
    torch.set_num_threads(1)  # the threads of a forked trainer are not here
    if start.workers:  # with none samples are loaded where there is no worker
        begin_as_worker(question.dataset, number, start.workers, question.terms.balance.seed)
    begin_worker(start.begin, number)
