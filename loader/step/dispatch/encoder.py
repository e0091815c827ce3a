"""One rank's copy of an encoder: what it takes, what it makes, and its gradients."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .routes import Size, count_rows


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
        expected = len(blank) if blank_size is None else count_rows(blank_size)
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

    def read_sizes(
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
        counts = [0 if tensor is None else len(tensor) for tensor in pixels]
        given_sizes = [[1] * n for n in counts] if sizes is None else sizes
        image_sizes: list[list[Size]] = [list(images) for images in given_sizes]
        rows = [sum(map(count_rows, images)) for images in image_sizes]
        if rows != counts:
            raise ValueError(f"the images of microbatches have {rows} rows, got pixels of {counts}")
        like = self._blank
        for number, tensor in enumerate(pixels):
            if tensor is None or not len(tensor):
                continue
            shape, needed = (tuple(t.shape[1:]) for t in (tensor, like))
            if shape != needed or (tensor.dtype, tensor.device) != (like.dtype, like.device):
                raise ValueError(
                    f"rows of microbatch {number} are {shape} {tensor.dtype} on "
                    f"{tensor.device}, those of blank {needed} {like.dtype} on {like.device}; "
                    "give them alike"
                )
            if tensor.requires_grad:
                raise ValueError(
                    f"pixels of microbatch {number} require a gradient, which does not travel "
                    "back; put what computes them into the encoder"
                )
        return image_sizes

    def joined(self, pixels: Sequence[Tensor | None]) -> Tensor:
        """Return the rows of several microbatches."""
        present = [rows for rows in pixels if rows is not None and len(rows)]
        return torch.cat(present) if present else self._blank[:0]

    def __call__(self, rows: Tensor, sizes: Sequence[Size]) -> Tensor:
        """Return the features of images; ValueError if they are not what the blank image says."""
        known = self._made()
        if not sizes:
            return rows.new_empty((0, *known.shape), dtype=known.dtype)
        features = self._call(rows, sizes)
        shape = (*self.counts([sizes]), *known.shape)
        if tuple(features.shape) != shape or features.dtype != known.dtype:
            raise ValueError(
                f"the encoder made {tuple(features.shape)} {features.dtype} of {len(rows)} rows, "
                f"its features of the blank image say {shape} {known.dtype}: it must make as many "
                "of every row, and the same precision (autocast on in all calls, or in none)"
            )
        return features

    def counts(self, images: Sequence[Sequence[Size]]) -> list[int]:
        """Return the features of some images, for each of several lists of them."""
        known = self._made()
        counts = []
        for rows in (sum(map(count_rows, group)) for group in images):
            features, remainder = divmod(rows * known.features, known.rows)
            if remainder:
                raise ValueError(
                    f"the encoder makes {known.features} features of {known.rows} rows, and an "
                    f"image has {rows} rows: give images whose features are a whole number"
                )
            counts.append(features)
        return counts

    def backward(self, features: Tensor, gradient: Tensor, into: list[Tensor | None]) -> None:
        """Run the backward, and add the gradients to `into`; `.grad` stays as it is.

        It may hold what was summed over ranks before, which must not be summed again.
        """
        parameters = self.trained()
        before = [parameter.grad for parameter in parameters]
        for parameter, summed in zip(parameters, into, strict=True):
            parameter.grad = summed
        try:
            torch.autograd.backward([features], [gradient])
        finally:
            for number, parameter in enumerate(parameters):
                into[number], parameter.grad = parameter.grad, before[number]

    def _made(self) -> _Made:
        if self._known is None:
            sizes = [] if self._size is None else [self._size]
            with torch.no_grad():
                features = self._call(self._blank, sizes)
            self._known = _Made(
                len(features), len(self._blank), tuple(features.shape[1:]), features.dtype
            )
        return self._known

    def _call(self, rows: Tensor, sizes: Sequence[Size]) -> Tensor:
        features: Any = self.module(rows) if self._size is None else self.module(rows, list(sizes))
        if not isinstance(features, Tensor):
            raise TypeError(
                f"the encoder returned {type(features).__name__}, needed is a tensor of features: "
                "wrap it in a module that returns one tensor; DeepStack features side by side, for "
                "a first stage that takes them apart (they do not travel to later stages)"
            )
        return features
