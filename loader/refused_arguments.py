"""Refuses the constructor's arguments that would have no effect, or that contradict each other.

Without this a mistyped or misplaced argument would be dropped without a word.
"""

from typing import Any

from ..balancer.planning.problem.balance import DEFAULTS, Balance
from ..balancer.planning.problem.options import COUNTED
from ..workers.arena.transport import Transport, why_inline
from ..workers.daemon.decode_threads import MAX_THREADS
from ..workers.sources.interface import Source
from ..workers.sources.thread_safety import refuse_threads
from .remote_dataset import RemoteDataset


def refuse_without_balance(**given: Any) -> None:
    """Raise ValueError for arguments that only a balanced loader has; None: not given."""
    for name, value in given.items():
        if value is not None:
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


def checked_shuffle(shuffle: bool | None, mode: str) -> bool:
    """Return whether a balanced loader shuffles; ValueError where nobody said so.

    torch's default is the data's order, and a training loop that forgets `shuffle` notices
    nothing: the caller has to say it. In the data's order each step has the samples that stand
    there, so that nothing is planned over several steps.
    """
    if shuffle is None:
        raise ValueError(
            "a balanced loader has no default for shuffle: give shuffle=True for another order in "
            "each epoch, or shuffle=False for the data's order, planned within each step"
        )
    check_order(shuffle, mode)
    return shuffle


def check_order(shuffle: bool, mode: str) -> None:
    """Raise ValueError where the data's order is asked for, and a mode that does not keep it."""
    if not shuffle and mode != "exact":
        raise ValueError(
            f"shuffle=False keeps the data's order step by step, and mode {mode!r} moves samples "
            "between steps: use mode 'exact', or shuffle=True"
        )


def refuse_ignored(
    dataset: Any, balance: Balance, batch_size: int | None, cost: Any, key: Any
) -> None:
    """Raise ValueError for arguments that have no effect beside others of a balanced loader."""
    _check_batch_size(balance, batch_size)
    if isinstance(dataset, RemoteDataset):
        for name, value in (("cost", cost), ("key", key)):
            if value is not None:
                raise ValueError(
                    f"{name} is for a dataset in this process, and a RemoteDataset is with the "
                    f"workers: leave {name}; their transform says what a sample costs"
                )
    if balance.layout == "torch":
        for name in ("pad_id", "dummy_tile"):
            if getattr(balance, name) != getattr(DEFAULTS, name):
                raise ValueError(
                    f"{name} is {getattr(balance, name)}, but in layout 'torch' collate_fn makes "
                    f"the batch: leave {name}, or use layout 'padded' or 'packed'"
                )


def check_decode_threads(
    threads: int, balancer: str | None, workers: int, source: Source | None
) -> None:
    """Raise ValueError for a number of decode threads that no worker of this loader can have."""
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise ValueError(
            f"decode_threads is {threads!r}: give the number of threads that decode in each "
            f"worker, 1 to {MAX_THREADS}"
        )
    if threads == 1:
        return
    if balancer is not None:
        raise ValueError(
            f"decode_threads={threads} is for workers that this loader starts, and with balancer= "
            f"they are elsewhere: start them with `counterpoise worker --threads {threads}`"
        )
    if workers == 0:
        raise ValueError(
            f"decode_threads={threads} are threads of a worker, and with num_workers=0 there is "
            "none: give num_workers >= 1"
        )
    refuse_threads(source, f"decode_threads={threads}")


def _check_batch_size(balance: Balance, batch_size: int | None) -> None:
    """Refuse a batch_size that decides about nothing, and budgets for steps that have no size."""
    if balance.grouping in COUNTED:
        return
    if balance.grouping == "auto":
        if batch_size is None:
            raise ValueError(
                'balance="auto" keeps batch_size samples a microbatch, and batch_size is None: '
                "give batch_size, or balance=None for samples without batches"
            )
        return
    # 1 is the default of torch's DataLoader: it cannot be told from an argument that was given.
    one = batch_size is None or batch_size == 1
    if balance.samples_per_step is not None and not one:
        raise ValueError(
            f"batch_size is {batch_size}, but samples_per_step is {balance.samples_per_step} and "
            f"grouping {balance.grouping!r} decides how many samples a microbatch has: leave "
            "batch_size, or use grouping 'fixed'"
        )
    if balance.budgets and balance.samples_per_step is None:
        extra = "" if one else f" instead of batch_size={batch_size}"
        raise ValueError(
            "budgets decide how many samples a microbatch has, and nothing says how many a step "
            f"has: give Balance(samples_per_step=...), the global batch of all ranks{extra}"
        )
