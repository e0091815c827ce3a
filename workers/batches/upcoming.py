"""Says to stores what a worker loads next: the task at hand, and those that wait in its queue."""

from collections.abc import Callable, Iterable
from typing import Any

from ..arena.worker import this_worker
from ..stores.samples import expect_samples


def expect_tasks(
    source: Any,
    task: Any,
    samples_of: Callable[[Any], Iterable[tuple[int, bool]]],
    upcoming: Iterable[Any] = (),
) -> None:
    """Begin to read the samples of a task and of the next ones; `samples_of` names a task's.

    upcoming: tasks that wait elsewhere than in the queue of one of torch's workers.
    """
    worker = this_worker()
    waiting = () if worker is None or worker.tasks is None else worker.tasks.waiting()
    # torch's other messages to a worker are no pairs
    tasks = [
        task,
        *upcoming,
        *(each[1] for each in waiting if isinstance(each, tuple) and len(each) == 2),
    ]
    expect_samples(source, (sample for each in tasks for sample in samples_of(each)))
