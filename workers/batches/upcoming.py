"""Says to stores what a worker loads next: the task at hand, and those that wait in its queue."""

from collections.abc import Callable, Iterable
from typing import Any

from ..arena.worker import this_worker

# Names the samples of a task, and whether they are only probed.
SamplesOf = Callable[[Any], Iterable[tuple[int, bool]]]


def expect_tasks(source: Any, task: Any, samples_of: SamplesOf, more: Iterable[Any] = ()) -> None:
    """Begin to read the samples of a task and of the next ones, which `more` are; see SamplesOf."""
    from ..stores.files import expect_samples  # what is local does without

    worker = this_worker()
    waiting = () if worker is None or worker.tasks is None else worker.tasks.waiting()
    # torch's other messages to a worker are no pairs
    queued = (each[1] for each in waiting if isinstance(each, tuple) and len(each) == 2)
    tasks = [task, *more, *queued]
    expect_samples(source, (sample for each in tasks for sample in samples_of(each)))
