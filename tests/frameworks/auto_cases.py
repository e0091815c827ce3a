"""Cases of `balance="auto"` that several ranks run together, by name from tests.frameworks.pool."""

import os
from typing import Any

import torch.distributed as dist

import counterpoise as cp
from counterpoise.loader import automatic

from .tiny import KEPT, Texts, collate, numbers_of


def _make(**more: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "balance": "auto"}
    loader = cp.DataLoader(Texts(more.pop("count", 90)), collate_fn=collate, **{**given, **more})
    KEPT.append(loader)
    return loader


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def together(accumulate: int = 2, count: int = 90, ranks: Any = None) -> Any:
    """Return what one rank takes, its ledger and its length; rank 0 asks for that first."""
    loader = _make(
        balance=cp.Balance("auto", accumulate=accumulate), count=count, num_workers=1,
        ranks=ranks,
    )  # fmt: skip
    length = len(loader) if _rank() == 0 else None
    taken = [
        (info.step, info.microbatch, info.rank, numbers_of(b)) for b, info in loader.with_info()
    ]
    return taken, loader.state_dict(), length


def resumed() -> Any:
    """Return what comes after a ledger from inside a step; nobody reads the first samples again."""
    loader = _make(balance=cp.Balance("auto", accumulate=2), num_workers=1)
    batches = iter(loader)
    first = [numbers_of(next(batches)) for _ in range(3)]
    state = loader.state_dict()
    again = _make(balance=cp.Balance("auto", accumulate=2), num_workers=1)
    module: Any = automatic
    asked, module.ask_worker = module.ask_worker, None
    try:
        again.load_state_dict(state)
        rest = [numbers_of(batch) for batch in again]
    finally:
        module.ask_worker = asked
    return first, rest


def raises(samples: list[Any]) -> Any:
    """Fail in Python."""
    raise TypeError(f"cannot stack {len(samples)}")


def dies(_: list[Any]) -> Any:
    """End the process."""
    os._exit(7)


def failing(kind: str) -> str:
    """Return the error of a rank whose collate_fn cannot be tried."""
    loader = cp.DataLoader(
        Texts(), 4, shuffle=True, balance="auto", collate_fn=dies if kind == "dies" else raises,
        num_workers=1, ranks=cp.Ranks(name=kind),
    )  # fmt: skip
    KEPT.append(loader)
    try:
        next(iter(loader))
    except (ValueError, cp.LoaderError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def small_budget() -> str:
    """Return the error of a rank where a step does not fit into the byte budget."""
    loader = _make(num_workers=1, buffer_bytes=300)
    try:
        next(iter(loader))
    except (ValueError, cp.LoaderError) as error:
        return str(error)
    return "no error"


def waits(folder: str, balance: Any) -> dict[str, str]:
    """Return when ranks wait by a loader's plan, for each way to give it to accelerate."""
    from accelerate import Accelerator, PartialState
    from accelerate.utils import DistributedType, GradientAccumulationPlugin

    from .trainer_cases import trainer

    def planned(loader: Any) -> str:
        return str(loader._balanced.plan.waits)

    def prepared(prepare: Any, **given: Any) -> str:
        loader = _make(balance=balance)
        prepare(Accelerator(**given), loader)
        return planned(loader)

    def sharded(accelerator: Any, loader: Any) -> None:
        state, kept = PartialState(), accelerator.distributed_type
        state.distributed_type = DistributedType.FSDP
        ours(accelerator, loader)
        state.distributed_type = kept

    ours, theirs = cp.adapters.prepare_accelerate, Accelerator.prepare
    each = GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    found = {
        "prepare": prepared(theirs, gradient_accumulation_steps=2),
        "prepare_accelerate": prepared(ours, gradient_accumulation_steps=2),
        "each batch": prepared(ours, gradient_accumulation_plugin=each),
        "fsdp": prepared(sharded, gradient_accumulation_steps=2),
        "by hand": prepared(theirs, gradient_accumulation_steps=1),
    }
    loader = _make(balance=balance)
    cp.adapters.attach_trainer(trainer(folder, 2, max_steps=1), loader)
    return {**found, "trainer": planned(loader)}
