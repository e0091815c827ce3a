"""One rank's copy of an encoder: what it takes, what it makes, and its gradients."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .routes import Size, rows_of


class _Made(NamedTuple):
    """Features that the encoder makes of the blank image's rows: their number and shape."""

    features: int
    rows: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class EncoderCopy:
    """The encoder as `ImageDispatch` is given it; ValueError if it is wrapped."""

    def __init__(self, module: nn.Module, blank: Tensor, blank_size: Size | None) -> None:
        wrapped = isinstance(module, DistributedDataParallel)
        # FSDP2 makes DTensors of the parameters, which have placements.
        if wrapped or any(hasattr(p, "placements") for p in module.parameters()):
            raise ValueError(
                "the encoder is wrapped with DistributedDataParallel or sharded with FSDP2, whose "
                "own sums of gradients ranks without images would not enter; give the plain "
                "module: backward() sums its gradients"
            )
        expected = len(blank) if blank_size is None else rows_of(blank_size)
        if not len(blank) or len(blank) != expected or (blank_size is None and len(blank) != 1):
            raise ValueError(
                f"blank has {len(blank)} rows, needed are the {expected or 1} of one image: give "
                "one row, or the image's size as blank_size"
            )
        self.module, self._blank, self._size = module, blank, blank_size
        self._known: _Made | None = None

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that are trained."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def sizes_of(
        self, pixels: Sequence[Tensor | None], sizes: Sequence[Sequence[Size]] | None
    ) -> list[list[Size]]:
        """Return the sizes of each microbatch's images; ValueError if the rows do not fit."""
        if (sizes is None) != (self._size is None):
            raise ValueError(
                "the encoder has a blank_size, so step() needs the sizes of all images"
                if sizes is None
                else "sizes are given, but no blank_size: every row is an image of its own"
            )
        # Other ranks plan by these sizes: what does not fit is found before they are sent.
        counts = [0 if one is None else len(one) for one in pixels]
        given = [[1] * n for n in counts] if sizes is None else sizes
        found: list[list[Size]] = [list(one) for one in given]
        rows = [sum(map(rows_of, one)) for one in found]
        if rows != counts:
            raise ValueError(f"the images of microbatches have {rows} rows, got pixels of {counts}")
        like = self._blank
        for number, one in enumerate(pixels):
            if one is None or not len(one):
                continue
            shape, needed = (tuple(t.shape[1:]) for t in (one, like))
            if shape != needed or (one.dtype, one.device) != (like.dtype, like.device):
                raise ValueError(
                    f"rows of microbatch {number} are {shape} {one.dtype} on {one.device}, those "
                    f"of blank {needed} {like.dtype} on {like.device}; give them alike"
                )
            if one.requires_grad:
                raise ValueError(
                    f"pixels of microbatch {number} require a gradient, which does not travel "
                    "back; put what computes them into the encoder"
                )
        return found

    def joined(self, pixels: Sequence[Tensor | None]) -> Tensor:
        """Return the rows of several microbatches."""
        some = [one for one in pixels if one is not None and len(one)]
        return torch.cat(some) if some else self._blank[:0]

    def __call__(self, rows: Tensor, sizes: Sequence[Size]) -> Tensor:
        """Return the features of images; ValueError if they are not what the blank image says."""
        known = self._made()
        if not sizes:
            return rows.new_empty((0, *known.shape), dtype=known.dtype)
        found = self._call(rows, sizes)
        shape = (*self.counts([sizes]), *known.shape)
        if tuple(found.shape) != shape or found.dtype != known.dtype:
            raise ValueError(
                f"the encoder made {tuple(found.shape)} {found.dtype} of {len(rows)} rows, its "
                f"features of the blank image say {shape} {known.dtype}: it must make as many of "
                "every row, and the same precision (autocast on in all calls, or in none)"
            )
        return found

    def counts(self, images: Sequence[Sequence[Size]]) -> list[int]:
        """Return the features of some images, for each of several lists of them."""
        known = self._made()
        found = []
        for rows in (sum(map(rows_of, some)) for some in images):
            features, rest = divmod(rows * known.features, known.rows)
            if rest:
                raise ValueError(
                    f"the encoder makes {known.features} features of {known.rows} rows, and an "
                    f"image has {rows} rows: give images whose features are a whole number"
                )
            found.append(features)
        return found

    def backward(self, made: Tensor, gradient: Tensor, into: list[Tensor | None]) -> None:
        """Run the backward, and add the gradients to `into`; `.grad` stays as it is.

        It may hold what was summed over ranks before, which must not be summed again.
        """
        parameters = self.trained()
        before = [parameter.grad for parameter in parameters]
        for parameter, own in zip(parameters, into, strict=True):
            parameter.grad = own
        try:
            torch.autograd.backward([made], [gradient])
        finally:
            for number, parameter in enumerate(parameters):
                into[number], parameter.grad = parameter.grad, before[number]

    def _made(self) -> _Made:
        if self._known is None:
            sizes = [] if self._size is None else [self._size]
            with torch.no_grad():
                found = self._call(self._blank, sizes)
            self._known = _Made(len(found), len(self._blank), tuple(found.shape[1:]), found.dtype)
        return self._known

    def _call(self, rows: Tensor, sizes: Sequence[Size]) -> Tensor:
        found: Any = self.module(rows) if self._size is None else self.module(rows, list(sizes))
        if not isinstance(found, Tensor):
            raise TypeError(
                f"the encoder returned {type(found).__name__}, needed is a tensor of features: "
                "wrap it in a module that returns one tensor; DeepStack features side by side, for "
                "a first stage that takes them apart (they do not travel to later stages)"
            )
        return found
