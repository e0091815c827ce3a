"""Refuses the constructor's arguments that would have no effect, or that contradict each other.

Without this a mistyped or misplaced argument would be dropped without a word. What only a balanced
loader has is checked in balanced/arguments.py: a plain loop does not import it.
"""

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from ..workers.arena.transport import Transport, why_inline
from ..workers.batches.envelope import is_stateful

Given = ParamSpec("Given")
TARS = (".tar", ".tar.gz", ".tgz")
# The bytes that are held where nobody says how many: as in JobSpec.
BUFFER_BYTES = 1 << 30
# Arguments of a balanced loader by the value that says nothing; that of all others is None.
NOT_GIVEN = {"name": "", "buffer_bytes": BUFFER_BYTES, "decode_threads": 1}


def refuse_moved_arguments(init: Callable[Given, None]) -> Callable[Given, None]:
    """Make a constructor raise TypeError, with the new form, for an argument that is Balance's.

    A decorator instead of **arguments, so that the signature stays exact for editors and mypy.
    """
    owner, known = init.__qualname__.partition(".")[0], {*inspect.signature(init).parameters}

    @functools.wraps(init)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> None:
        if unknown := {name: value for name, value in kwargs.items() if name not in known}:
            _refuse_moved(owner, unknown, kwargs.get("balance"), known)
        init(*args, **kwargs)

    return checked


def _refuse_moved(owner: str, unknown: dict[str, Any], balance: object, known: set[str]) -> None:
    # here: a plain loop imports nothing of planning
    from ..balancer.near_names import near_name
    from ..balancer.planning.problem.options import OPTIONS

    if moved := {name: unknown[name] for name in OPTIONS if name in unknown}:
        grouping = {"grouping": balance} if isinstance(balance, str) else {}
        options = ", ".join(f"{name}={value!r}" for name, value in {**grouping, **moved}.items())
        raise TypeError(
            f"{owner} has no argument {', '.join(moved)} any more: write balance=Balance({options})"
        )
    for name in unknown:
        if near := near_name(name, known | OPTIONS.keys()):
            raise TypeError(f"{owner} has no argument {name}{near}")


def named_fleet(fleet: Any, balance: Any, balancer: str | None, keys: object) -> str | None:
    """Return the balancer's address, or what stands for it until ranks join a fleet; checks it."""
    if fleet is None or balance is None:
        return balancer
    if isinstance(fleet, str) or not hasattr(fleet, "join"):
        raise ValueError(f"fleet={fleet!r:.80}: give cp.fleet.Ray(workers=(4, 64)), say")
    if balancer is not None or keys is not None:
        raise ValueError(
            "a fleet brings its balancer and keys: give fleet=, or balancer= and keys="
        )
    return "tcp://fleet"


def refuse_no_samples(dataset: Any, balance: object) -> None:
    """Raise ValueError for paths in place of a data set, and for an iterator to be balanced.

    A text has a length and letters, so that a loader would go over these.
    """
    first = dataset[0] if isinstance(dataset, list | tuple) and dataset else dataset
    is_path = isinstance(dataset, str | bytes | os.PathLike)
    if is_path or (isinstance(first, str | os.PathLike) and str(first).endswith(TARS)):
        shown = f"{dataset!r:.80}"
        raise ValueError(
            f"{shown} names files, and is no data set: for tar shards give cp.TarDataset({shown}), "
            "for others a data set that reads them"
        )
    is_stream = hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    is_stream = isinstance(dataset, IterDataPipe) or is_stream
    if balance is not None and is_stream and not hasattr(dataset, "__getitems__"):
        raise ValueError(
            f"balance= needs a map-style dataset, or an IterableDataset, whose samples are packed "
            f"as they come, and a {type(dataset).__name__} is neither: give an IterableDataset "
            "whose __iter__ iterates over it, a data set with len() and dataset[i], for shards of "
            'webdataset cp.TarDataset("shards/*.tar", transform), or leave balance'
        )


def is_packed_stream(dataset: Any) -> bool:
    """Return whether a balanced loop packs a data set as it comes: no sample has an index."""
    is_stream = isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)
    return is_stream and not hasattr(dataset, "__getitems__")


def refuse_without_balance(given: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments, by name, that only a balanced loader has."""
    for name, value in given.items():
        default = NOT_GIVEN.get(name)
        if value is not None if default is None else value != default:
            raise ValueError(f'{name} needs a balanced loader: give balance="balanced", say')


def refuse_without_policy(on_error: str, dead_letter: str | None) -> None:
    """Raise ValueError for a dead-letter file that nothing would be written to."""
    if dead_letter is not None and on_error == "raise":
        raise ValueError(
            f"dead_letter={dead_letter!r} records samples that on_error='skip' leaves out, and "
            "on_error is 'raise': give on_error='skip', or leave dead_letter"
        )


def checked_restarts(worker_restarts: int | None, on_error: str, transport: Transport) -> int:
    """Return how many workers that have died are replaced; ValueError for no such number.

    By default none where there is no shared memory, which replacing them needs.

    >>> checked_restarts(None, "skip", "auto"), checked_restarts(None, "raise", "auto")
    (3, 0)
    >>> checked_restarts(None, "skip", "inline")
    0
    """
    if worker_restarts is None:
        return 3 if on_error == "skip" and not why_inline(transport) else 0
    if type(worker_restarts) is not int or worker_restarts < 0:
        raise ValueError(f"worker_restarts is {worker_restarts!r}, allowed are 0, 1, 2 and so on")
    return worker_restarts


def plain_restarts(given: int | None, restarts: int, dataset: Any, num_workers: int) -> int:
    """Return how many workers a plain loader replaces; ValueError where that was asked in vain.

    A stream's worker, or that of a data set with a state, would begin elsewhere than it was.
    """
    is_possible = not isinstance(dataset, IterableDataset | IterDataPipe | MapDataPipe)
    is_possible = is_possible and not is_stateful(dataset)
    if given and not is_possible:
        raise ValueError(
            f"worker_restarts={given}, and a worker of a {type(dataset).__name__} cannot go on "
            "where another has died: it is a stream, or has a state; leave worker_restarts"
        )
    return restarts if is_possible and num_workers else 0


def checked_max_errors(max_errors: float | None, on_error: str) -> float | None:
    """Return how many samples of an epoch may be left out; ValueError for what cannot be.

    >>> checked_max_errors(0.01, "skip")
    0.01
    """
    if max_errors is None:
        return None
    if on_error not in ("skip", "refill"):
        raise ValueError(f"max_errors={max_errors} counts samples that on_error='skip' leaves out")
    most = 1.0 if isinstance(max_errors, float) else math.inf
    if not 0 <= max_errors < most:
        raise ValueError(
            f"max_errors is {max_errors!r}: give a count, or a part of the samples such as 0.01"
        )
    return max_errors
