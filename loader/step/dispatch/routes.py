"""Routes of a step's images: every rank's sends and receives, from sizes that all ranks know.

An image is some rows of the encoder's input: one tile, or all patches of a picture. Rows of one
image stay together. All ranks compute the same plan from the same sizes, so no rank tells another
what it sends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

from ....balancer.planning.partition.images import image_loads, spread_images

# The rows of an image, or its grid, such as (frames, height, width), whose product they are.
Size = int | tuple[int, ...]


def count_rows(size: Size) -> int:
    """Return the rows of an image.

    >>> count_rows(4), count_rows((1, 2, 3))
    (4, 6)
    """
    return size if isinstance(size, int) else prod(size)


@dataclass(frozen=True, slots=True)
class Route:
    """One rank's part in a round.

    `order`: its own images, those for the first rank first. `send`, `receive`: the sizes of the
    images that it sends to, and gets from, each rank. `microbatches`: of its own images in each.
    `loads`, `whole`: what each rank encodes, and would encode of its own samples.
    """

    order: tuple[int, ...]
    send: tuple[tuple[Size, ...], ...]
    receive: tuple[tuple[Size, ...], ...]
    microbatches: tuple[tuple[Size, ...], ...]
    loads: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def encoded(self) -> list[Size]:
        """Return the sizes of the images that this rank encodes, in their order."""
        return list(chain.from_iterable(self.receive))

    @property
    def own(self) -> list[Size]:
        """Return the sizes of this rank's own images, in their order."""
        return list(chain.from_iterable(self.microbatches))


def plan_round(
    sizes: Sequence[Sequence[Sequence[Size]]], rank: int, cost: Callable[[Any], int]
) -> Route:
    """Return the route of a rank.

    `sizes`: of the images, by rank and microbatch of the round. `cost`: of an image, by its size.

    >>> route = plan_round([[[1, 1, 1]], [[1]]], rank=0, cost=count_rows)
    >>> route.order, route.send, route.receive, route.loads
    ((0, 1, 2), ((1, 1), (1,)), ((1, 1), ()), (2, 2))
    """
    ranks = len(sizes)
    by_rank = [list(chain.from_iterable(of_rank)) for of_rank in sizes]
    homes = [home for home, images in enumerate(by_rank) for _ in images]
    costs = [cost(size) for images in by_rank for size in images]
    # All ranks' images, not this rank's alone: so no rank has to be told what comes.
    to = spread_images(costs, homes, ranks).tolist()
    first, targets = 0, []
    for images in by_rank:
        targets.append(to[first : first + len(images)])
        first += len(images)

    def sent(source: int, target: int) -> tuple[Size, ...]:
        pairs = zip(by_rank[source], targets[source], strict=True)
        return tuple(size for size, at in pairs if at == target)

    return Route(
        order=tuple(sorted(range(len(by_rank[rank])), key=lambda image: targets[rank][image])),
        send=tuple(sent(rank, peer) for peer in range(ranks)),
        receive=tuple(sent(peer, rank) for peer in range(ranks)),
        microbatches=tuple(tuple(images) for images in sizes[rank]),
        loads=tuple(image_loads(costs, to, ranks)),
        whole=tuple(image_loads(costs, homes, ranks)),
    )
