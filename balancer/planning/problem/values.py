"""The values that arguments of `Balance` may be: Work, Shapes, Images and PipelineOrder.

Most loops write the short form of one instead: `as_work`, `as_shapes` and `as_pipeline` read it.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...near_names import explain_arguments
from .frozen_mapping import FrozenMapping, expression
from .options import LLM, Dispatch, OrderingName, WorkName, check_option


@explain_arguments()
@dataclass(frozen=True, slots=True, repr=False)
class Work:
    """What microbatches cost, `Balance(work=)`; wrong values raise ValueError.

    Short forms: "packed", "padded", or the mapping of nanoseconds.

    Args:
        kind: What does not add up as tiles do costs the sum of samples ("packed"), or their number
            x the largest ("padded"); default: padded with layout "padded".
        time_ns: Nanoseconds of each resource's unit, {"tokens": 40}, and of "attention_pairs",
            longest times longest of each sample; default: a tile counts as 307 tokens, others by
            their means.

    >>> as_work({"tokens": 40})
    Work(time_ns={'tokens': 40})
    """

    kind: WorkName | None = None
    time_ns: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        check_option("work", self.kind)
        check_option("time_ns", self.time_ns)
        if self.time_ns is not None:
            object.__setattr__(self, "time_ns", FrozenMapping(self.time_ns))

    __repr__ = expression


@explain_arguments()
@dataclass(frozen=True, slots=True, repr=False)
class Shapes:
    """What samples and microbatches are padded to, `Balance(shapes=)`; ValueError for wrong values.

    Short forms: 8 or a mapping, the multiple of samples; "fixed", one shape (buckets=1).

    Args:
        align: Samples are padded to a multiple, {"tokens": 16}, or 16 of tokens; default: none.
        cp: Context-parallel ranks: samples are padded to a multiple of 2 x cp tokens; default 1.
        buckets: Microbatches are padded to one of these, {"tokens": [4096, 8192]}, or to one of so
            many lengths in tokens, evenly spaced up to their budget: 8; default: none.
        bucket_by: The name of a cost that is no work, and of which all samples of a microbatch have
            one value: a number for each resolution, say; default: none.

    >>> as_shapes(8)
    Shapes(align={'tokens': 8})
    """

    align: Mapping[str, int] | int = FrozenMapping[int]({})
    cp: int = 1
    buckets: Mapping[str, Sequence[int]] | int = FrozenMapping[Sequence[int]]({})
    bucket_by: str | None = None

    def __post_init__(self) -> None:
        align: Any = {LLM: self.align} if type(self.align) is int else self.align
        check_option("align", align)
        check_option("cp", self.cp)
        check_option("buckets", self.buckets)
        check_option("bucket_by", self.bucket_by)
        object.__setattr__(self, "align", FrozenMapping(align))
        if isinstance(self.buckets, Mapping):
            ascending = {name: tuple(sorted({*sizes})) for name, sizes in self.buckets.items()}
            object.__setattr__(self, "buckets", FrozenMapping(ascending))

    __repr__ = expression

    @property
    def multiples(self) -> dict[str, int]:
        """The multiple that samples are padded to, by resource: of align and of 2 x cp."""
        multiples = {LLM: self.align} if isinstance(self.align, int) else dict(self.align)
        if self.cp > 1:
            multiples[LLM] = math.lcm(2 * self.cp, multiples.get(LLM, 1))
        return multiples


@explain_arguments()
@dataclass(frozen=True, slots=True, repr=False)
class Images:
    """How images meet ranks, `Balance(images=)`; wrong values raise ValueError.

    Args:
        dispatch: "images" are encoded by other ranks than their samples', as `ImageDispatch`
            spreads them: only the language model's work is balanced; default "samples".
        all_or_none: The resource, such as "tiles", that at each microbatch index all ranks have or
            none has, for sharded encoders (FSDP), which every rank has to enter; default: none.
            Indices stay mixed where a step has too few.
        dummy_tile: The side in pixels of the zero tile that batches of layouts "padded" and
            "packed" without images get; default 0: no tile.
    """

    dispatch: Dispatch = "samples"
    all_or_none: str | None = None
    dummy_tile: int = 0

    def __post_init__(self) -> None:
        for name in ("dispatch", "all_or_none", "dummy_tile"):
            check_option(name, getattr(self, name))

    __repr__ = expression


@explain_arguments()
@dataclass(frozen=True, slots=True, repr=False)
class PipelineOrder:
    """The pipeline that a rank's microbatches are ordered for, `Balance(pipeline=)`.

    Schedule and stages follow from the profile. Short form: its path. ValueError for wrong values.

    Args:
        profile: The path of a cost profile, or of a job's plan; read where the loader is made.
        ordering: "two_opt" searches from the order of "disttrain", which is faster to find; default
            "two_opt".
    """

    profile: str
    ordering: OrderingName = "two_opt"

    def __post_init__(self) -> None:
        check_option("profile", self.profile)
        check_option("ordering", self.ordering)
        if self.ordering == "given":
            raise ValueError(
                "a pipeline is given, and ordering 'given' looks at none: use ordering 'two_opt', "
                "or leave pipeline out"
            )

    __repr__ = expression


DEFAULT_WORK, DEFAULT_SHAPES, DEFAULT_IMAGES = Work(), Shapes(), Images()


def as_work(work: Work | WorkName | Mapping[str, int]) -> Work:
    """Return the value of `Balance(work=)`; ValueError for what is none."""
    if isinstance(work, Work):
        return work
    if isinstance(work, Mapping):
        return Work(time_ns=work)
    if isinstance(work, str):
        return Work(work)
    raise ValueError(
        f"work is {work!r:.80}, allowed are 'packed', 'padded', nanoseconds of each resource such "
        "as {'tokens': 40}, or a cp.Work"
    )


def as_shapes(shapes: Shapes | Mapping[str, int] | int | str) -> Shapes:
    """Return the value of `Balance(shapes=)`; ValueError for what is none.

    >>> as_shapes("fixed")
    Shapes(buckets=1)
    """
    if isinstance(shapes, Shapes):
        return shapes
    if isinstance(shapes, Mapping) or type(shapes) is int:
        return Shapes(shapes)
    if shapes == "fixed":
        return Shapes(buckets=1)
    raise ValueError(
        f"shapes is {shapes!r:.80}, allowed are a multiple of tokens such as 16, 'fixed', a "
        "multiple of each resource such as {'tokens': 16}, or a cp.Shapes"
    )


def as_images(images: Images) -> Images:
    """Return the value of `Balance(images=)`; ValueError for what is none."""
    if isinstance(images, Images):
        return images
    raise ValueError(
        f"images is {images!r:.80}, allowed is a cp.Images, such as cp.Images(dispatch='images')"
    )


def as_pipeline(pipeline: PipelineOrder | str | os.PathLike[str] | None) -> PipelineOrder | None:
    """Return the value of `Balance(pipeline=)`; ValueError for what is none."""
    if pipeline is None or isinstance(pipeline, PipelineOrder):
        return pipeline
    if isinstance(pipeline, str | os.PathLike):
        return PipelineOrder(os.fspath(pipeline))
    raise ValueError(
        f"pipeline is {pipeline!r:.80}, allowed are the path of a cost profile, a "
        "cp.PipelineOrder, or None"
    )
