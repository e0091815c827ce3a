"""Ways to damage a balanced loader, by the words of the table in docs/reference/framework-calls.md.

Each returns the error that is raised, in words, or "" where the loader hands out what it planned.
"""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import accelerate
import accelerate.data_loader
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader as TorchLoader

import counterpoise as cp

from . import accelerate_cases, lightning_cases, tiny
from .tiny import Texts, TinyModel, balanced, collate, error_of, numbers_of

WAYS: dict[str, Callable[[], str]] = {}


def way(words: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def note(case: Callable[[], str]) -> Callable[[], str]:
        WAYS[words] = case
        return case

    return note


def run(words: str) -> str:
    """Do the damage that a row of the table names."""
    return WAYS[words]()


def names() -> list[str]:
    """The rows that there must be."""
    return list(WAYS)


def seen(loader: Any) -> list[list[int]]:
    return [numbers_of(batch) for batch in loader]


def unchanged(loader: Any, **named: Any) -> str:
    """ "" if a loader hands out what one in nobody's hands does."""
    found, expected = seen(loader), seen(balanced(**named))
    return "" if found == expected else f"{found} is not {expected}"


def configured(**named: bool) -> Accelerator:
    return Accelerator(dataloader_config=DataLoaderConfiguration(**named))


@way("`accelerator.prepare(loader)`")
def _() -> str:
    return unchanged(Accelerator().prepare(balanced()))


@way("`accelerator.prepare(loader)`, twice")
def _() -> str:
    accelerator, loader = Accelerator(), balanced()
    again = accelerator.prepare(accelerator.prepare(loader))
    assert again is loader
    assert accelerator._dataloaders == [loader]
    return unchanged(again)


@way("`prepare` of two Accelerators")
def _() -> str:
    return unchanged(Accelerator().prepare(Accelerator().prepare(balanced())))


@way("`prepare_data_loader(loader)` of `accelerate.data_loader`")
def _() -> str:
    Accelerator()
    return error_of(lambda: seen(accelerate.data_loader.prepare_data_loader(balanced())))


@way("`prepare`, then `DataLoaderShard(loader.dataset, batch_sampler=loader.batch_sampler)`")
def _() -> str:
    loader = Accelerator().prepare(balanced())
    shard = accelerate.data_loader.DataLoaderShard
    return error_of(lambda: seen(shard(loader.dataset, batch_sampler=loader.batch_sampler)))


@way("`dispatch_batches=True`")
def _() -> str:
    return unchanged(configured(dispatch_batches=True).prepare(balanced()))


@way("`split_batches=True`")
def _() -> str:
    return unchanged(configured(split_batches=True).prepare(balanced()))


@way("`split_batches=True` with `prepare_accelerate`")
def _() -> str:
    accelerator = configured(split_batches=True)
    return error_of(lambda: cp.adapters.prepare_accelerate(accelerator, balanced()))


@way("`even_batches=False`")
def _() -> str:
    return unchanged(configured(even_batches=False).prepare(balanced()))


@way("`join_uneven_inputs([model], even_batches=False)`")
def _() -> str:
    accelerator = Accelerator()
    model = accelerator.prepare(TinyModel(torch.float32))
    loader = accelerator.prepare(balanced())
    with accelerator.join_uneven_inputs([model], even_batches=False):
        return unchanged(loader)


@way("`accelerator.skip_first_batches(loader, 2)`")
def _() -> str:
    return accelerate_cases.skipped()


@way("`torch.utils.data.DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)`")
def _() -> str:
    loader = balanced()
    return error_of(lambda: seen(TorchLoader(loader.dataset, batch_sampler=loader.batch_sampler)))


@way("`torch.utils.data.DataLoader(loader.dataset, sampler=loader.sampler)`")
def _() -> str:
    loader = balanced()
    return error_of(lambda: seen(TorchLoader(loader.dataset, sampler=loader.sampler)))


@way("`loader.batch_sampler = ...`")
def _() -> str:
    loader = balanced()
    return error_of(lambda: setattr(loader, "batch_sampler", [[1]]))


@way("`gather_for_metrics` of microbatches of different sizes")
def _() -> str:
    gathered = accelerate_cases.evaluated("balanced", 91)
    return "" if sorted(gathered) == list(range(91)) else f"{gathered}"


@way("`gather_for_metrics` of tensors that differ in their second dimension")
def _() -> str:
    accelerator = Accelerator()
    loader = accelerator.prepare(balanced())
    batch = next(iter(loader))
    tensor = torch.zeros(len(batch["input_ids"]), 3 + accelerator.process_index)
    return error_of(lambda: accelerator.gather_for_metrics(tensor))


@way("`gradient_accumulation_steps=1` and `Balance(accumulate=4)`")
def _() -> str:
    return accelerate_cases.accumulation_error(4, 1)


@way('`accelerator.accumulate` and `Balance(accumulate="auto")`')
def _() -> str:
    balance = cp.Balance("balanced", budgets={"tokens": 60}, samples_per_step=24, accumulate="auto")
    loader = cp.DataLoader(
        Texts(), balance=balance, shuffle=True, cost=tiny.cost, collate_fn=collate, num_workers=1
    )
    tiny.KEPT.append(loader)
    return error_of(lambda: next(iter(Accelerator().prepare(loader))))


@way("a state of 2 ranks in a loader of 1")
def _() -> str:
    loader = balanced(step=24)
    iterator = iter(loader)
    first = numbers_of(next(iterator))
    state, rest = loader.state_dict(), seen(iterator)
    alone = balanced(ranks=(0, 1), num_workers=0, step=24)
    alone.load_state_dict(state)
    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, (first, rest))
    expected = [sorted(ranks[0][1][n] + ranks[1][1][n]) for n in range(3)]
    return "" if [sorted(batch) for batch in seen(alone)] == expected else "other samples"


@way("`fit` of Lightning with `ddp`")
def _() -> str:
    found, expected = lightning_cases.fitted("balanced"), lightning_cases.alone()
    return "" if found == expected else f"{found} is not {expected}"


@way("`predict` of Lightning")
def _() -> str:
    return lightning_cases.predicted()


@way("`Trainer(overfit_batches=2)` of Lightning")
def _() -> str:
    trainer = lightning_cases.trainer(max_epochs=1, overfit_batches=2)
    return error_of(lambda: trainer.fit(lightning_cases.Module(), balanced()))


@way("`fabric.setup_dataloaders(loader)`")
def _() -> str:
    found, expected = lightning_cases.set_up("balanced"), lightning_cases.alone()
    return "" if found == expected else f"{found} is not {expected}"


@way("a `BalancedBatchSampler` in a loader for `accelerator.prepare`")
def _() -> str:
    return accelerate_cases.sampler_prepared()


@way("a `BalancedBatchSampler` in a loader for Lightning or Fabric")
def _() -> str:
    errors = [lightning_cases.sampler_fitted(each) for each in ("lightning", "fabric")]
    said = "use_distributed_sampler=False"
    return next((error for error in errors if said not in error), errors[0])


@way("`copy.deepcopy(loader)`")
def _() -> str:
    loader = copy.deepcopy(balanced())
    tiny.KEPT.append(loader)
    return unchanged(loader)


@way("`itertools.islice(loader, 2, None)` to resume")
def _() -> str:
    found = [numbers_of(batch) for batch in itertools.islice(balanced(), 2, None)]
    return "" if found == seen(balanced())[2:] else f"{found}"
