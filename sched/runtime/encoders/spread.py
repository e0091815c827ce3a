"""One encoder whose replicas share the images of every microbatch (`Units(spread=True)`).

Each replica is an encoder of its own to the program: a *part*, with features of its own, which the
first stage puts together again. The program is the same in every step, and only sizes change. A
replica of the language model deals its images in turn, so in a step no part has more than one image
of it more than another, however full microbatches are; every rank that needs a size knows the
images of this replica, without a message.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..parts import TensorSpec, count_tokens
from .placement import EncoderSpec


def split_encoder(specs: Sequence[EncoderSpec], parts: int) -> tuple[EncoderSpec, ...]:
    """Return the encoder of each part. Raises ValueError for several encoders, or no `images`."""
    if len(specs) != 1 or specs[0].images is None:
        listed = (
            f"{len(specs)} encoders" if len(specs) != 1 else f"{specs[0].name!r} without images="
        )
        raise ValueError(
            f"units spread the images of one encoder, and got {listed}: give one EncoderSpec with "
            "images=, the number of a microbatch's images by its costs, such as {'tiles': 1}"
        )
    spec = specs[0]
    names = [spec.layer_name(number) for number in range(len(spec.modules))]
    part_names = (f"{spec.name}, part {number} of {parts}" for number in range(parts))
    return tuple(replace(spec, name=name, layer_names=names, pieces=1) for name in part_names)


def part_specs(
    parts: Sequence[EncoderSpec], infos: Sequence[Any], replicas: int
) -> list[tuple[TensorSpec, ...]]:
    """Return the features of every part of each microbatch, () where nothing comes here.

    `infos`: of all microbatches, replica by replica of the language model, None for other ranks'.
    Raises ValueError for images that do not have as many features each.
    """
    per_replica, specs = len(infos) // replicas, list[tuple[TensorSpec, ...]]()
    for number, info in enumerate(infos):
        if not number % per_replica:
            # Replicas begin with other parts: the first has no more of all.
            turn = number // per_replica
        if info is None:
            specs.append(())
            continue
        spec = parts[0]
        images = count_tokens("images=", spec.images or {}, info)
        whole = spec.features_spec(info)
        features, remainder = divmod(whole.shape[0], images) if images else (0, whole.shape[0])
        if remainder:
            raise ValueError(
                f"a microbatch has {images} images and {whole.shape[0]} features: images that are "
                "spread have as many features each; give EncoderSpec the true tokens and images"
            )
        # Part p gets image j if turn + j is p, modulo the parts.
        counts = [
            len(range((p - turn) % len(parts), images, len(parts))) for p in range(len(parts))
        ]
        turn += images
        sizes = [(features * count, *whole.shape[1:]) for count in counts]
        specs.append(tuple(replace(whole, shape=size) for size in sizes))
    return specs


def part_rows(field: Tensor, name: str, before: int, count: int, total: int) -> Tensor:
    """Return the rows of a field that a part encodes.

    `before`, `count`, `total`: the features of the parts before it, its own, and those of all.
    Raises ValueError for rows that are not alike.
    """
    first, end = len(field) * before, len(field) * (before + count)
    if first % total or end % total:
        raise ValueError(
            f"{name} has {len(field)} rows, which do not divide into images of as many features; "
            "units spread images that are alike: give whole microbatches (spread=False), or tiles"
        )
    return field[first // total : end // total]
