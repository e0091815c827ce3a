"""Encodes what most torch datasets give: a tensor, or a tuple, list or dict of tensors and numbers.

What pickle would write for them is the same for all samples of a form (container, types and
shapes), so there is none: the packed header has the form, which is remembered on both sides, and
the payload the bytes of tensors and numbers, each at the next multiple of 64. Everything else is
pickled: tensors that lie in another order, subclasses, one tensor twice, containers in containers.
Samples come back as from pickle.
"""

import functools
import math
import reprlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import msgpack
import numpy as np
import torch

from .fields import Buffer, CodecError, aligned, padded
from .objects import flat_tensor, is_plain

MOST_MEMBERS = 64
FORMS_REMEMBERED = 1024

_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_ARRAY_NAMES = {np.dtype(name): name for name in _TYPES if name != "bfloat16"}
# Numbers are in the payload, not in the form: labels differ from sample to sample.
_NUMBERS = {int: "int", float: "float", bool: "truth"}
_PACKED = {"int": struct.Struct("<q"), "float": struct.Struct("<d"), "truth": struct.Struct("<?")}

# A packed header, and the buffers of the payload.
Encoded = tuple[bytes, list[Buffer]]
# A member's type, and the shape of a tensor.
Member = tuple[str, tuple[int, ...]]


class TensorRows:
    """The rows of a batch's tensor, which need not be made: tensors of one type and shape."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[torch.Tensor]]:
        """Return how it is pickled: as the tensor. RuntimeError where it cannot be made."""
        return _itself, (torch.stack([*self.tensors]),)


def _itself(value: Any) -> Any:
    return value


def encode_tensors(value: object) -> Encoded | None:
    """Return the packed header and the buffers of the payload; None for what has another form.

    In place of a tensor may be its TensorRows.

    >>> header, buffers = encode_tensors((torch.tensor([65, 66], dtype=torch.uint8), 7))
    >>> msgpack.unpackb(header), [len(each) for each in buffers]
    ({'tensors': ['tuple', [], [['uint8', [2]], ['int', []]]]}, [2, 62, 8])
    """
    names: tuple[str, ...] = ()
    members: Sequence[Any]
    if type(value) is torch.Tensor:  # most of all, and quicker by itself
        described = _tensor(value)
        if described is None:
            return None
        return _packed_header("one", (), described[:1]), [described[1]] if described[1] else []
    if type(value) is TensorRows:
        container, members = "one", (value,)
    elif type(value) is tuple or type(value) is list:
        container, members = type(value).__name__, value
    elif type(value) is dict and all(type(name) is str for name in value):
        container, names, members = "dict", tuple(value), tuple(value.values())
    else:
        return None
    found = _described(members)
    if found is None:
        return None
    form, contents, has_rows = found
    buffers = contents if len(contents) == 1 and contents[0] else aligned(contents)
    if has_rows:
        buffers = [*chain.from_iterable(map(_pieces, buffers))]
    return _packed_header(container, names, form), buffers


def encode_batch(batch: Mapping[str, Any]) -> Encoded | None:
    """Return what `encode_tensors` does of a dict of tensors on these arrays, and of numbers.

    Arrays lie in C order. None where some type is not known here.

    >>> arrays = {"ids": np.array([65, 66]), "most": 7}
    >>> tensors = {"ids": torch.tensor([65, 66]), "most": 7}
    >>> encode_batch(arrays)[0] == encode_tensors(tensors)[0]
    True
    """
    form, contents = list[Member](), list[Buffer]()
    for value in batch.values():
        if type(value) is np.ndarray:
            name = _ARRAY_NAMES.get(value.dtype)
            if name is None:
                return None
            form.append((name, value.shape))
            contents.append(value.data.cast("B") if value.size else b"")
            continue
        described = _number(value)
        if described is None:
            return None
        form.append(described[0])
        contents.append(described[1])
    return _packed_header("dict", tuple(batch), tuple(form)), aligned(contents)


class MemberPlace(NamedTuple):
    """A member in a payload: the type of a tensor or the format of a number, and its bytes.

    shape: of a tensor. start, nbytes: where it lies.
    """

    kind: torch.dtype | struct.Struct
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SampleForm:
    """A container ("one", "tuple", "list", "dict" with these names), and where its members lie.

    nbytes: of the payload.
    """

    container: str
    names: tuple[str, ...]
    places: tuple[MemberPlace, ...]
    nbytes: int


def read_tensors(layout: object) -> Callable[[memoryview], Any]:
    """Return what reads the payloads of a header; CodecError for what was not encoded here.

    Tensors are views of the payload, writable if it is.
    """
    form = _form(layout)
    builds: dict[str, Callable[[list[Any]], Any]] = {
        "one": _only,
        "tuple": tuple,
        "list": list,
        "dict": functools.partial(_named, form.names),
    }
    return functools.partial(_read, builds[form.container], form.places, form.nbytes)


@functools.lru_cache(FORMS_REMEMBERED)
def form_of(header: bytes) -> SampleForm | None:
    """Return the form of the samples of a packed header, None if they have another encoding.

    Raises what reading the header raises.
    """
    match msgpack.unpackb(header):
        case {"tensors": layout, **rest} if not rest:
            return _form(layout)
    return None


def _form(layout: object) -> SampleForm:
    names: tuple[str, ...] = ()
    match layout:
        case ["one", [], [_] as members]:
            container = "one"
        case [("tuple" | "list") as container, [], [*members]]:
            pass
        case ["dict", [*keys], [*members]] if len(keys) == len(members):
            container, names = "dict", tuple(map(_name, keys))
        case _:
            raise CodecError(f"no such container: {reprlib.repr(layout)}")
    places, end = list[MemberPlace](), 0
    for member in members:
        kind, shape, size = _checked(member)
        start = padded(end) if size else end
        end = start + size
        places.append(MemberPlace(kind, shape, start, size))
    return SampleForm(str(container), names, tuple(places), end)


def _described(members: Sequence[Any]) -> tuple[tuple[Member, ...], list[Any], bool] | None:
    """Return types and shapes, the bytes of each member, and whether some have them in rows.

    None if one has no type that is known here, or is there twice.
    """
    if len(members) > MOST_MEMBERS:
        return None
    form, contents, tensors, has_rows = list[Member](), list[Any](), set[int](), False
    for member in members:
        is_tensor = type(member) is torch.Tensor
        described: tuple[Member, Any] | None
        if type(member) is TensorRows:
            is_tensor = has_rows = True
            described = _rows(member.tensors)
        else:
            described = _tensor(member) if is_tensor else _number(member)
        # Pickle keeps one that is there twice one tensor.
        if described is None or id(member) in tensors:
            return None
        if is_tensor:
            tensors.add(id(member))
        form.append(described[0])
        contents.append(described[1])
    return (tuple(form), contents, has_rows) if tensors else None


class _Pieces(list[Buffer]):
    """The bytes of a tensor's rows; its length is that of all."""

    def __len__(self) -> int:
        return sum(map(len, self))


def _pieces(content: Any) -> Sequence[Buffer]:
    return content if type(content) is _Pieces else (content,)


def _rows(tensors: Sequence[torch.Tensor]) -> tuple[Member, _Pieces] | None:
    """Return the type and shape of a tensor of these rows, and their bytes."""
    found = [_tensor(tensor) if type(tensor) is torch.Tensor else None for tensor in tensors]
    rows = [each for each in found if each is not None]
    if len(rows) < len(tensors) or len({member for member, _ in rows}) != 1:
        return None
    name, shape = rows[0][0]
    return (name, (len(rows), *shape)), _Pieces(content for _, content in rows)


def _number(value: Any) -> tuple[Member, Buffer] | None:
    name = _NUMBERS.get(type(value))
    if name is None or (name == "int" and not -(1 << 63) <= value < 1 << 63):
        return None
    return (name, ()), _PACKED[name].pack(value)


def _tensor(tensor: torch.Tensor) -> tuple[Member, Buffer] | None:
    """Return a tensor's type and shape, and its bytes; None if there is more to it."""
    name = _NAMES.get(tensor.dtype)
    if name is None or tensor.requires_grad or tensor.__dict__:
        return None
    if name == "bfloat16":  # which numpy has not
        if not is_plain(tensor):
            return None
        tensor = tensor.view(torch.int16)
    try:
        # It refuses what is not in this process' memory, sparse or negated: quicker than to ask.
        array = tensor.numpy()
    except (RuntimeError, TypeError):
        return None
    if not array.flags.c_contiguous:
        return None
    return (name, array.shape), array.data.cast("B") if array.size else b""


@functools.lru_cache(FORMS_REMEMBERED)
def _packed_header(container: str, names: tuple[str, ...], form: tuple[Member, ...]) -> bytes:
    packed: bytes = msgpack.packb({"tensors": [container, names, form]})
    return packed


def _checked(member: object) -> tuple[torch.dtype | struct.Struct, tuple[int, ...], int]:
    """Return a member's type, shape, and size in bytes."""
    # Each batch that a worker lays out has a form of its own: patterns would take three times this.
    if type(member) is list and len(member) == 2:
        name, lengths = member
        if type(name) is str and type(lengths) is list:
            if lengths == [] and name in _PACKED:
                return _PACKED[name], (), _PACKED[name].size
            if name in _TYPES and all(map(_is_length, lengths)):
                return _TYPES[name], tuple(lengths), math.prod(lengths) * _TYPES[name].itemsize
    raise CodecError(f"no such member: {reprlib.repr(member)}")


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _name(value: object) -> str:
    if type(value) is not str:
        raise CodecError(f"no such name: {reprlib.repr(value)}")
    return value


def _read(
    build: Callable[[list[Any]], Any],
    places: Sequence[MemberPlace],
    nbytes: int,
    payload: memoryview,
) -> Any:
    if len(payload) != nbytes:
        raise CodecError(f"the members end at byte {nbytes}, the payload has {len(payload)}")
    return build([_member(payload, place) for place in places])


def _member(payload: memoryview, place: MemberPlace) -> Any:
    kind, shape = place.kind, place.shape
    if isinstance(kind, struct.Struct):
        return kind.unpack_from(payload, place.start)[0]
    if 0 in shape:
        return _empty(shape, kind)
    flat = flat_tensor(payload, kind, place.nbytes // kind.itemsize, place.start)
    return flat if len(shape) == 1 else flat.view(shape)


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        raise CodecError(f"no such shape: {shape}") from error


def _only(members: list[Any]) -> Any:
    return members[0]


def _named(names: Sequence[str], members: list[Any]) -> dict[str, Any]:
    return dict(zip(names, members, strict=True))
