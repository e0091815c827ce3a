"""Runs a function over tasks: in this process, on all cores, or on a Ray cluster.

A function of (task, options) and its result travel to other processes and machines, so all three
are values.
"""

import functools
import itertools
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

import click

from ..workers.processes.ending import end_with_parent
from .console.commands import COUNT
from .console.signals import stop_on_signal

TaskFunction = Callable[[Any, Any], Any]
# The number of a task and its result, in any order.
Results = Iterator[tuple[int, Any]]
# Applies a function to tasks.
Runner = Callable[[TaskFunction, Sequence[Any], Any], Results]
CONNECT_TIMEOUT_S = 5.0


def runner_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --workers and --ray to a command, as its argument `run`, a Runner."""

    @functools.wraps(command)
    def with_runner(workers: int | None, ray: str, **arguments: Any) -> Any:
        return command(run=on_ray(ray) if ray else on_cores(workers), **arguments)

    count = click.option("--workers", type=COUNT, help="Number of processes.  [default: all cores]")
    cluster = click.option(
        "--ray", default="", metavar="ADDRESS", help="Run on a Ray cluster instead."
    )
    return count(cluster(with_runner))


def in_this_process(function: TaskFunction, tasks: Sequence[Any], options: Any) -> Results:
    """Apply the function to one task after the other."""
    for number, task in enumerate(tasks):
        yield number, function(task, options)


def on_cores(workers: int | None = None) -> Runner:
    """Return a runner over so many processes, or all cores; this one does a single task itself.

    After an interrupt it finishes and yields the tasks that have been started, then raises
    KeyboardInterrupt.
    """
    cores = workers or len(os.sched_getaffinity(0))

    def run(function: TaskFunction, tasks: Sequence[Any], options: Any) -> Results:
        if cores < 2 or len(tasks) < 2:
            yield from in_this_process(function, tasks, options)
            return
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(cores, len(tasks)), context, _begin_process)
        with stop_on_signal() as interrupted:
            try:
                waiting, started = enumerate(tasks), dict[Future[Any], int]()
                # A started task cannot be taken back, so only one more than the cores is.
                room = cores + 1
                while room or started:
                    for number, task in itertools.islice(waiting, 0 if interrupted() else room):
                        started[pool.submit(function, task, options)] = number
                    finished, _ = wait(started, return_when=FIRST_COMPLETED)
                    for future in finished:
                        yield started.pop(future), future.result()
                    room = len(finished)
            finally:
                pool.shutdown(cancel_futures=True)
            if interrupted():
                raise KeyboardInterrupt

    return run


def on_ray(address: str) -> Runner:
    """Return a runner over a Ray cluster; its nodes must see the same files under the same paths.

    Raises ValueError if ray is not installed, ConnectionError if no cluster answers.
    """
    from ..workers.fleet.ray_actors import import_ray  # here: others need no balancer

    ray = import_ray("--ray")
    _check_reachable(address)

    def run(function: TaskFunction, tasks: Sequence[Any], options: Any) -> Results:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        remote = ray.remote(num_cpus=1, max_retries=3, scheduling_strategy="SPREAD")(function)
        pending = {remote.remote(task, options): number for number, task in enumerate(tasks)}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            for reference in ready:
                number = pending.pop(reference)
                yield number, ray.get(reference)

    return run


def _check_reachable(address: str) -> None:
    """Raise ConnectionError if nothing listens at host:port; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster at {address} ({error}); start one with `ray start --head`, and give "
            "the address that it prints"
        ) from None


def _begin_process() -> None:
    """Leave Ctrl-C, which goes to the whole group, to the parent, and end when that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
