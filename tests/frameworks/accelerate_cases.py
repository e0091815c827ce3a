"""What the tests of accelerate run in each process of a pool."""

from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader as TorchLoader

import counterpoise as cp

from .tiny import Texts, TinyModel, balanced, collate, error_of, numbers_of, plain


def seen(loader: Any) -> list[list[int]]:
    return [numbers_of(batch) for batch in loader]


def plain_prepared(count: int, even: bool = True) -> Any:
    """The samples of each batch, ours and torch's; whether ours is still ours."""
    accelerator = Accelerator()
    ours = accelerator.prepare(plain(count))
    theirs = accelerator.prepare(TorchLoader(Texts(count), batch_size=4, collate_fn=collate))
    return seen(ours), seen(theirs), isinstance(ours, cp.DataLoader)


def evaluated(kind: str, count: int) -> list[int]:
    """The samples that gather_for_metrics returns for an evaluation."""
    accelerator = Accelerator()
    loader = plain(count) if kind == "plain" else balanced(count=count, step=10, shuffle=False)
    found = []
    for batch in accelerator.prepare(loader):
        numbers = torch.tensor(numbers_of(batch), dtype=torch.int64)
        found += accelerator.gather_for_metrics(numbers).tolist()
    return found


def gradient_state() -> list[tuple[bool, bool, bool]]:
    """(in a loader, at its end, synchronising) before, at each batch of, and after an epoch."""
    accelerator = Accelerator(gradient_accumulation_steps=2)
    state, model = accelerator.gradient_state, accelerator.prepare(TinyModel())
    found = [(state.in_dataloader, state.end_of_dataloader, True)]
    for _ in accelerator.prepare(balanced(accumulate=2)):
        with accelerator.accumulate(model):
            found.append((state.in_dataloader, state.end_of_dataloader, state.sync_gradients))
    return [*found, (state.in_dataloader, state.end_of_dataloader, True)]


def accumulation_error(ours: int, theirs: int) -> str:
    """What the first batch says where the counts differ."""
    loader = Accelerator(gradient_accumulation_steps=theirs).prepare(balanced(accumulate=ours))
    return error_of(lambda: next(iter(loader)))


def skipped() -> str:
    """What a balanced loader says to skip_first_batches."""
    loader = Accelerator().prepare(balanced())
    return error_of(lambda: list(skip_first_batches(loader, 2)))


def sampling() -> Any:
    """Return torch's loader over a BalancedBatchSampler."""
    sampler = cp.BalancedBatchSampler(
        {"tokens": Texts().lengths}, cp.Balance(budgets={"tokens": 400}, samples_per_step=24)
    )
    return TorchLoader(Texts(), batch_sampler=sampler, collate_fn=collate)


def sampler_prepared() -> str:
    """What a BalancedBatchSampler says to accelerator.prepare."""
    config = DataLoaderConfiguration(even_batches=False)
    return error_of(lambda: Accelerator(dataloader_config=config).prepare(sampling()))


def placed() -> tuple[str, str]:
    """The device types of a batch with a stand-in device, and of the loader's own."""
    accelerator = Accelerator()
    loader = accelerator.prepare(balanced())
    here = next(iter(loader))["input_ids"].device.type
    loader._accelerate.device = torch.device("meta")
    return here, next(iter(loader))["input_ids"].device.type


def kept(folder: str, count: int) -> Any:
    """(samples by prepare_accelerate, by accelerate's own; whose loader; the rest; it resumed)."""
    accelerator = Accelerator()
    ours = cp.adapters.prepare_accelerate(accelerator, plain(count, num_workers=1))
    whole = seen(ours)
    theirs = accelerator.prepare(TorchLoader(Texts(count), batch_size=4, collate_fn=collate))
    expected = seen(theirs)
    accelerator.free_memory()
    again = cp.adapters.prepare_accelerate(accelerator, plain(count))
    iterator = iter(again)
    next(iterator)
    accelerator.save_state(folder)
    rest = seen(iterator)
    accelerator.free_memory()
    resumed = cp.adapters.prepare_accelerate(accelerator, plain(count))
    accelerator.load_state(folder)
    name = type(ours.base_dataloader).__module__
    return whole, expected, name, rest, seen(resumed)


class NoState(Texts):
    """Texts whose state nobody can have."""

    def state_dict(self, rank: int) -> dict[str, Any]:
        raise AssertionError(rank)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)


def kept_without_state(folder: str) -> tuple[int, str]:
    """The batches of a data set whose state cannot be had, and what save_state says."""
    accelerator = Accelerator()
    loader = cp.DataLoader(NoState(), batch_size=4, collate_fn=collate)
    prepared = cp.adapters.prepare_accelerate(accelerator, loader)
    return len(seen(prepared)), error_of(lambda: accelerator.save_state(folder))


def sampler_kept() -> tuple[list[list[int]], list[list[int]]]:
    """The batches of a loader over a BalancedBatchSampler, and those of the prepared one."""
    made = cp.adapters.prepare_accelerate(Accelerator(), sampling())
    return seen(sampling()), seen(made)
