"""A data set that cannot say where it is ends no loop; who asks for the state hears why."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import counterpoise as cp
from counterpoise.workers.batches.envelope import pack_position

COUNT = 8


class NeedsArguments(IterableDataset[Any]):
    """As litData's CombinedStreamingDataset, whose own loader tells it what it needs."""

    def __iter__(self) -> Iterator[Any]:
        return iter([{"input_ids": torch.tensor([n] * 3)} for n in range(COUNT)])

    def state_dict(self, num_workers: int, batch_size: int) -> dict[str, int]:
        return {"workers": num_workers, "batch": batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


class HoldsALock(NeedsArguments):
    """Its state cannot leave the worker."""

    def state_dict(self, *_: int) -> dict[str, Any]:
        return {"lock": threading.Lock()}


class ByIndex:
    """A map-style data set whose state is not to be had."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": torch.tensor([index] * 3)}

    def state_dict(self) -> Any:
        raise OSError("the bucket is gone")

    def load_state_dict(self, state: Any) -> None: ...


PACKED = {"balance": cp.Balance(budgets={"tokens": 6}, layout="packed", accumulate=1)}
LISTED = {"batch_size": 2, "collate_fn": list}
WHY = {
    NeedsArguments: r"NeedsArguments.*missing 2 required positional arguments.*num_workers",
    HoldsALock: r"HoldsALock.*cannot pickle '_thread.lock' object",
    ByIndex: r"ByIndex.*OSError: the bucket is gone",
}


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}])
@pytest.mark.parametrize(
    ("data", "how"),
    [(NeedsArguments, LISTED), (HoldsALock, LISTED), (ByIndex, LISTED), (NeedsArguments, PACKED)],
)
def test_a_data_set_without_a_state_to_be_had_ends_no_loop(
    data: Any, how: Any, workers: Any
) -> None:
    loader: Any = cp.DataLoader(data(), **how, **workers)
    for _ in range(2):
        assert len(list(loader)) == COUNT // 2
        begun = iter(loader)
        next(begun)
        with pytest.raises(ValueError, match=f"{WHY[data]}.*state_dict"):
            loader.state_dict()
        assert len(list(begun)) == COUNT // 2 - 1


def test_what_a_handler_of_a_signal_raises_in_the_midst_is_not_taken_for_the_states() -> None:
    class Once:
        asked = 0

        def state_dict(self) -> dict[str, int]:
            self.asked += 1
            if self.asked == 1:
                raise TimeoutError("of a handler")
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise AssertionError(state)

    with pytest.raises(TimeoutError, match="of a handler"):
        pack_position(None, Once())
