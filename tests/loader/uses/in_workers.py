"""Uses that are about worker processes: what they see, and how they start and end."""

from typing import Any

from tests.loader.uses.kinds import Make, batches, use
from tests.loader.uses.samples import Made, Numbers, Slow, worker_number


def _refuse_start(worker: int) -> None:
    raise OSError(f"worker {worker} has no disk")


@use("`get_worker_info()` in the workers")
def informed(make: Make) -> Any:
    return sorted(str(batch) for batch in batches(make(Made(worker_number), num_workers=2)))


@use("`worker_init_fn` that raises")
def init_raises(make: Make) -> Any:
    return batches(make(Numbers(), num_workers=1, worker_init_fn=_refuse_start))


@use("`persistent_workers=True` over two epochs")
def persistent(make: Make) -> Any:
    loader = make(Numbers(), batch_size=3, num_workers=2, persistent_workers=True)
    return [batches(loader) for _ in range(2)]


@use("`prefetch_factor=1`")
def prefetch(make: Make) -> Any:
    return batches(make(Numbers(), batch_size=2, num_workers=2, prefetch_factor=1))


@use("`in_order=False`")
def without_order(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2, num_workers=2, in_order=False)
    return sorted(number for batch in loader for number in batch.tolist())


@use("`timeout=` when a worker takes longer")
def timed_out(make: Make) -> Any:
    return batches(make(Slow(), num_workers=1, timeout=0.3))


@use('`multiprocessing_context="spawn"`')
def spawned(make: Make) -> Any:
    return batches(make(Numbers(4), batch_size=2, num_workers=1, multiprocessing_context="spawn"))
