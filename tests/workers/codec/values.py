"""Values of all kinds that samples have, and what it is for two to be the same."""

import collections

import hypothesis.extra.numpy as shapes
import numpy as np
import torch
from hypothesis import strategies as st

Pair = collections.namedtuple("Pair", ["image", "label"])


def same(left, right):
    """Equal in value, type, dtype and shape, all the way down."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert torch.equal(left.nan_to_num(), right.nan_to_num())
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for name in left:
            same(left[name], right[name])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    elif isinstance(left, float) and left != left:
        assert right != right
    else:
        assert left == right


DTYPES = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u4", "<f2", "<f4", "<f8", "<c8"]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: shapes.arrays(
        dtype, shapes.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats()
TENSORS = [
    torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
]  # fmt: skip


@st.composite
def tensors(draw):
    """Tensors of many kinds, some of them views: transposed, sliced, expanded, shared."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    seed = draw(st.integers(0, 1 << 30))
    values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))
    tensor = values.to(draw(st.sampled_from(TENSORS)))
    view = draw(st.sampled_from(["plain", "transposed", "sliced", "expanded", "shared"]))
    if view == "transposed" and tensor.ndim > 1:
        return tensor.transpose(0, -1)
    if view == "sliced" and tensor.ndim > 0:
        return tensor[..., ::2]
    if view == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor.share_memory_() if view == "shared" else tensor
