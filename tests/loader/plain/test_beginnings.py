"""iter() of a plain loader waits for workers whose data set has a state; raises their errors."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._utils import ExceptionWrapper

from counterpoise import DataLoader
from counterpoise.loader.plain.iterators import Beginnings
from tests.loader.plain.stateful_data import ByDataset, Drawing


class Unloadable(Drawing):
    def load_state_dict(self, _: Any) -> None:
        raise ValueError("this state is of another data set")


class CodedError(Exception):
    """Cannot be made from its text alone, as torch would make it in the trainer."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)


def refuse_in_the_second(number: int) -> None:
    if number == 1:
        raise ValueError("no room here")


def refuse_by_code(number: int) -> None:
    raise CodedError(number, "no room here")


def die(number: int) -> None:
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("data", "method"),
    [(Drawing(8), "fork"), (ByDataset([4, 4]), "fork"), (Drawing(8), "forkserver")],
)
def test_what_worker_init_fn_raises_comes_from_iter(data: Any, method: str) -> None:
    loader = DataLoader(
        data, num_workers=2, worker_init_fn=refuse_in_the_second, multiprocessing_context=method
    )
    with pytest.raises(ValueError, match=r"worker process 1(.|\n)*no room here"):
        iter(loader)
    loader.worker_init_fn = None
    assert len(list(loader)) == 8


def test_so_does_what_a_state_raises() -> None:
    loader = DataLoader(Unloadable(8), num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    del iterator
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="another data set"):
        iter(loader)


def test_an_error_that_cannot_be_made_again_is_told_by_its_text() -> None:
    loader = DataLoader(Drawing(8), num_workers=1, worker_init_fn=refuse_by_code)
    with pytest.raises(RuntimeError, match="no room here"):
        iter(loader)


def test_a_worker_that_dies_at_its_beginning_is_an_error_and_no_hang() -> None:
    loader = DataLoader(Drawing(8), num_workers=2, worker_init_fn=die)
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* exited|killed by signal"):
        list(loader)


@pytest.fixture
def living() -> Iterator[SimpleNamespace]:
    """What stands for a worker that has not ended."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        yield SimpleNamespace(sentinel=reader)


def test_a_worker_that_says_nothing_ends_the_wait_after_the_timeout(living: Any) -> None:
    beginnings = Beginnings(None, ExceptionWrapper)
    workers_end = os.dup(beginnings.worker_part()._writer.fileno())
    beginnings.wait([living], timeout_s=0.01)
    os.close(workers_end)


def test_workers_that_are_all_gone_end_the_wait(living: Any) -> None:
    Beginnings(None, ExceptionWrapper).wait([living], timeout_s=0)


def test_without_a_state_the_error_comes_with_the_first_batch_as_torchs_does() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8))
    iterator = iter(DataLoader(data, num_workers=1, worker_init_fn=refuse_by_code))
    with pytest.raises(RuntimeError, match="no room here"):
        next(iterator)
