"""Objects that stay on one host: any that can be pickled, with their arrays beside the pickle."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.workers.codec.batches import SMALL, decode_batch, encode_batch
from counterpoise.workers.codec.contents import CodecError
from counterpoise.workers.codec.local_frames import decode_local, encode_local, list_local_frames


@dataclass
class Record:
    pixels: Any
    label: int = 3
    more: Any = field(default_factory=lambda: {1, 2})


def there_and_back(batch: object) -> Any:
    return decode_local([bytearray(frame) for frame in encode_local(batch)])


def test_what_can_travel_has_the_same_frames_as_over_the_network() -> None:
    batch = {"x": torch.arange(1000), "text": "cat"}
    assert [*map(bytes, encode_local(batch))] == [*map(bytes, encode_batch(batch))]
    assert decode_local(encode_local(batch), {"text"}) == {"text": "cat"}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3000).reshape(30, 100), torch.arange(3000).reshape(30, 100).t(),
        torch.randn(2000).to(torch.bfloat16), torch.tensor(7), torch.empty(0, 4),
        torch.tensor([1 + 2j]).conj(),
    ],
)  # fmt: skip
def test_an_objects_tensors_come_back_writable(tensor: torch.Tensor) -> None:
    record = there_and_back(Record(tensor))
    assert (record.label, record.more) == (3, {1, 2})
    assert record.pixels.dtype == tensor.dtype
    assert torch.equal(record.pixels, tensor)
    record.pixels.zero_()


def test_large_contents_are_views_of_the_objects_memory() -> None:
    tensor, array = torch.zeros(SMALL), np.zeros(SMALL)
    frames = encode_local([Record(tensor), Record(array), Record(np.zeros(3))])
    assert [len(frame) for frame in frames[1:]] == [4 * SMALL, 8 * SMALL]
    tensor[:], array[:] = 1, 2
    first, second, _ = decode_local([bytes(frame) for frame in frames])
    assert (first.pixels.sum(), second.pixels.sum()) == (SMALL, 2 * SMALL)
    second.pixels[:] = 3


def test_a_tensor_that_needs_its_gradient_is_pickled_as_torch_does() -> None:
    record = there_and_back(Record(torch.ones(3, requires_grad=True)))
    assert record.pixels.requires_grad


def test_whoever_reads_what_came_over_a_network_refuses_a_pickle() -> None:
    with pytest.raises(CodecError):
        decode_batch(encode_local(Record(torch.zeros(SMALL))))


def test_of_what_is_pickled_all_frames_are_needed() -> None:
    frames = encode_local({"pixels": torch.zeros(2000), "more": {1, 2}})
    sizes = [len(frame) for frame in frames]
    assert list_local_frames(frames[0], sizes, {"more"}) == [*range(len(frames))]
    frames = encode_local({"pixels": torch.zeros(2000), "more": torch.ones(2000)})
    sizes = [len(frame) for frame in frames]
    assert list_local_frames(frames[0], sizes, {"more"}) == [0, 2]
