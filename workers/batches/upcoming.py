"""Tells stores what a worker loads next: the task at hand, and those that wait in its queue."""

from collections.abc import Callable, Iterable
from typing import Any

from ..arena.worker import this_worker

# Names the samples of a task, and whether they are only probed.
ListSamples = Callable[[Any], Iterable[tuple[int, bool]]]


def expect_tasks(source: Any, task: Any, lister: ListSamples, more: Iterable[Any] = ()) -> None:
    """Begin to read the samples of a task and of the next ones, which `more` are."""
    from ..stores.files import expect_samples  # what is local does without

    worker = this_worker()
    waiting = () if worker is None or worker.tasks is None else worker.tasks.waiting()
    # torch's other messages to a worker are no pairs
    queued = (pair[1] for pair in waiting if isinstance(pair, tuple) and len(pair) == 2)
    tasks = [task, *more, *queued]
    expect_samples(source, (sample for upcoming in tasks for sample in lister(upcoming)))
