"""Has a worker process, started as the loader's others are, answer what `auto` has to know.

It answers in memory of the trainer that has no name in a file system: a trainer that is killed
leaves nothing behind.
"""

import json
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch

from ...workers.processes.pool import Pool, WorkerSlot
from ...workers.processes.start_method import quiet_forks
from ...workers.sources.failures import describe_error
from .first_samples import Answer, Question, answer

logger = logging.getLogger(__name__)
LOG_S = 10.0


@dataclass(frozen=True, slots=True)
class _Task:
    question: Question
    begin: Callable[[int], None] | None
    result: str


def ask_worker(
    question: Question, context: BaseContext | None, begin: Callable[[int], None] | None = None
) -> Answer:
    """Return a worker's answer; ValueError with one line that says why there is none.

    context: the loader's multiprocessing_context; begin: its worker_init_fn.
    """
    with os.fdopen(os.memfd_create("counterpoise-auto"), "rb") as result:
        task = _Task(question, begin, f"/proc/{os.getpid()}/fd/{result.fileno()}")
        try:
            with quiet_forks():
                pool = Pool(_work, task, workers=1, context=context)
        except TypeError as error:  # what cannot be pickled, where processes start clean
            raise ValueError(
                f'{error}, or say how batches are made: Balance("auto", work="padded")'
            ) from None
        try:
            reason = _wait_for_end(pool)
        finally:
            pool.close()
        told = result.read()
    if not told.endswith(b"\n"):  # a worker that ended while it wrote has not answered
        raise ValueError(f"the first samples could not be read: {reason}")
    found = json.loads(told)
    if "error" in found:
        raise ValueError(found["error"])
    return Answer.from_values(found)


def _work(task: _Task, slot: WorkerSlot) -> None:
    # Opened first: the trainer may be killed later, and another process get its number.
    with Path(task.result).open("w", encoding="utf-8") as result:
        result.write(json.dumps(_answer_or_error(task, slot)) + "\n")


def _answer_or_error(task: _Task, slot: WorkerSlot) -> dict[str, Any]:
    torch.set_num_threads(1)  # the threads of a forked trainer are not here
    try:
        if task.begin is not None:
            task.begin(slot.index)
        return answer(task.question).to_values()
    except Exception as error:
        text = str(error) if isinstance(error, ValueError) else describe_error(error)
        return {"error": " ".join(text.split())}


def _wait_for_end(pool: Pool) -> str:
    """Wait until the worker has ended; return how that was."""
    since, log_at = time.monotonic(), LOG_S
    while not pool.failure():
        select.select([pool], [], [], 1.0)
        if (waited := time.monotonic() - since) > log_at:
            log_at *= 2
            logger.warning(
                'balance="auto" has read the first samples for %.0f s, to find what they cost',
                waited,
            )
    code = pool.exit_code(0)
    if code is not None and code < 0:
        return f"the process that read them was ended by {signal.Signals(-code).name}"
    return f"the process that read them ended with status {code}"
