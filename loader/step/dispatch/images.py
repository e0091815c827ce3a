"""`ImageDispatch`: spread a step's images over ranks, and bring features and gradients back.

A step's images are encoded in rounds, of all its microbatches or of some. In a round the images go
to the ranks that encode them, and their features come back to the ranks of their samples, where
they are leaves of the language model's graphs. When these have had their backward, the gradients
go the way back, and the encoder has its own. Every rank enters the same exchanges in the same
order, with images or without, so a rank without any does not keep the others waiting.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from ....balancer.near_names import check_name
from ..loss import REDUCTIONS, Reduction
from .encoder import EncoderCopy
from .exchange import Exchange
from .routes import Route, Size, count_rows, plan_round


class ImageDispatch:
    """An encoder of which every rank has a copy, and runs as much as the others.

    Args:
        encoder: The plain module, called with rows of images; it returns as many features for each
            row. Its copies start with the first rank's values, and `backward` gives them the same
            gradients.
        blank: The rows of one image, of any content, from which shapes and precision are known.
        blank_size: Its size, where an image has several rows: then `step` is given the size of each
            image, and the encoder rows and the list of sizes; default: every row is an image.
        cost: What an image costs the encoder, by its size; default its rows.
        together: Microbatches encoded in one round; default all of a step, which is most even and
            keeps the most activations.
        group: The data-parallel ranks, with pipeline stages those of all stages; default all.
        reduction: "mean" or "sum" of gradients over ranks; default "mean".

    With pipeline stages give it to `Pipeline(encoders=...)`, which calls `step` and `backward`.

    All ranks make it together, and call the same methods in the same order. Raises ValueError for
    wrong settings and for encoders that are wrapped, LoaderError if ranks do not come within the
    group's timeout.
    """

    def __init__(
        self,
        encoder: nn.Module,
        blank: Tensor,
        *,
        blank_size: Size | None = None,
        cost: Callable[[Any], int] = count_rows,
        together: int | None = None,
        group: Any = None,
        reduction: Reduction = "mean",
    ) -> None:
        check_name("reduction", reduction, REDUCTIONS)
        if together is not None and together < 1:
            raise ValueError(f"together is {together}, allowed are positive numbers and None")
        self._encoder, self.encoder = EncoderCopy(encoder, blank, blank_size), encoder
        self._cost, self.together, self.reduction = cost, together, reduction
        self._exchange = Exchange(group)
        self.ranks = self._exchange.rank_count
        weights = [weight.detach() for weight in (*encoder.parameters(), *encoder.buffers())]
        self._exchange.copy_values(weights, "the encoder's values")
        self._open: StepImages | None = None

    def step(
        self, pixels: Sequence[Tensor | None], sizes: Sequence[Sequence[Size]] | None = None
    ) -> "StepImages":
        """Return the images of a step, of which nothing is encoded yet.

        `pixels`: the rows of each of this rank's microbatches, None for one without images.
        `sizes`: of each image, where `blank_size` was given. Raises ValueError for rows that do not
        fit, on all ranks if their numbers of microbatches differ, RuntimeError if the step before
        has had no backward, and LoaderError if a rank does not come.
        """
        if self._open is not None and not self._open.is_over:
            raise RuntimeError(
                "the step before has had no backward(); call it when all losses have had theirs, "
                "or encode under torch.no_grad() where nothing is trained"
            )
        local = self._encoder.read_sizes(pixels, sizes)
        trained = torch.is_grad_enabled() and bool(self._encoder.trained())
        by_rank = self._exchange.gather((trained, local), "the sizes of the images")
        _check_alike(by_rank)
        size = self.together or max(1, len(local))
        rounds = []
        for first in range(0, len(local), size):
            images = [of_rank[first : first + size] for _, of_rank in by_rank]
            route = plan_round(images, self._exchange.rank, self._cost)
            rounds.append((range(first, min(first + size, len(local))), route))
        self._open = StepImages(
            self._encoder, self._exchange, pixels, rounds, trained, self.reduction
        )
        return self._open


class StepImages:
    """The images of one step; `ImageDispatch.step` makes it."""

    def __init__(
        self,
        encoder: EncoderCopy,
        exchange: Exchange,
        pixels: Sequence[Tensor | None],
        rounds: Sequence[tuple[range, Route]],
        trained: bool,
        reduction: Reduction,
    ) -> None:
        self._encoder, self._exchange = encoder, exchange
        self._pixels, self._rounds = list(pixels), rounds
        self._trained, self._reduction = trained, reduction
        self._at = -1
        self._features: dict[int, Tensor] = {}
        self._encoded: Tensor | None = None
        self._gradients: list[Tensor | None] = [None] * len(encoder.trained())
        self.is_over = not trained

    @property
    def loads(self) -> list[tuple[int, ...]]:
        """Return what each rank encodes in each round, in units of cost."""
        return [route.loads for _, route in self._rounds]

    @property
    def whole(self) -> list[tuple[int, ...]]:
        """Return what each rank would encode, if images stayed with their samples."""
        return [route.whole for _, route in self._rounds]

    def features(self, microbatch: int) -> Tensor:
        """Return the features of a microbatch's images, in their order; none for no images.

        The first of a round encodes all of the round, so microbatches are asked for in order, and
        those of the round before must have had their backward. Within its round a microbatch has
        the same tensor each time. Raises ValueError for another order, RuntimeError for a missing
        backward, LoaderError if a rank does not come.
        """
        if microbatch in self._features:
            return self._features[microbatch]
        following = self._at + 1
        if any(microbatch in microbatches for microbatches, _ in self._rounds[:following]):
            raise ValueError(
                f"features of microbatch {microbatch} were asked for before, and their round is "
                "over: keep the tensor if you need it again"
            )
        if following == len(self._rounds) or microbatch not in self._rounds[following][0]:
            raise ValueError(
                f"features of microbatch {microbatch} are not there: ask for those of the step's "
                f"{len(self._pixels)} microbatches from 0 on, in order"
            )
        if self._at >= 0:
            self._turn_back()
        self._at = following
        self._encode()
        return self._features[microbatch]

    def backward(self) -> None:
        """Run the encoder's backward, and add its gradients over all ranks to `.grad`.

        Every rank calls it when all microbatches of the step have had their backward, once. Does
        nothing if nothing is trained. Raises RuntimeError if features got no gradient or it is
        called again, LoaderError if a rank does not come.
        """
        if not self._trained:
            return
        if self.is_over:
            raise RuntimeError("this step has had its backward(): make another one with step()")
        if self._at + 1 != len(self._rounds):
            raise RuntimeError(
                f"features of round {self._at + 2} of {len(self._rounds)} were not asked for, and "
                "other ranks wait for them: call features() for every microbatch, those without "
                "images, too"
            )
        if self._rounds:
            self._turn_back()
        self.is_over = True
        parameters = self._encoder.trained()
        # Every rank enters the sum, those that encoded nothing with zeros.
        pairs = zip(parameters, self._gradients, strict=True)
        sums = [torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs]
        self._exchange.add_up(sums, "the sum of the encoder's gradients")
        for parameter, total in zip(parameters, sums, strict=True):
            if self._reduction == "mean":
                total /= self._exchange.rank_count
            parameter.grad = total if parameter.grad is None else parameter.grad + total

    def _encode(self) -> None:
        """Encode the current round's images, wherever they are from."""
        (numbers, route), encoder = self._rounds[self._at], self._encoder
        name = f"the images of microbatches {numbers[0]} to {numbers[-1]}"
        pixels = encoder.joined([self._pixels[number] for number in numbers])
        for number in numbers:
            self._pixels[number] = None
        rows = [count_rows(size) for size in route.own]
        sent = _in_order(pixels, rows, route.order)
        ways = (route.send, route.receive)
        send, receive = ([sum(map(count_rows, images)) for images in way] for way in ways)
        got = self._exchange.swap(sent, send, receive, name)
        with torch.set_grad_enabled(self._trained):
            encoded = encoder(got, route.encoded)
        back = self._exchange.swap(
            encoded.detach(), encoder.counts(route.receive), encoder.counts(route.send),
            f"the features of {name}",
        )  # fmt: skip
        counts = encoder.counts([[size] for size in route.own])
        arrived = [counts[image] for image in route.order]
        places = sorted(range(len(arrived)), key=route.order.__getitem__)
        features = _in_order(back, arrived, places)
        parts = torch.split(features, encoder.counts(route.microbatches))
        self._features = {
            number: part.detach().requires_grad_(self._trained)
            for number, part in zip(numbers, parts, strict=True)
        }
        self._encoded = encoded if self._trained else None

    def _turn_back(self) -> None:
        """Bring the gradients of the current round's features back, and run the encoder's."""
        if not self._trained:
            self._features = {}
            return
        (numbers, route), encoder = self._rounds[self._at], self._encoder
        # Where one is missing the features stay, so that the caller can still run its backward.
        gradients = torch.cat(
            [_gradient(n, features) for n, features in sorted(self._features.items())]
        )
        self._features = {}
        counts = encoder.counts([[size] for size in route.own])
        got = self._exchange.swap(
            _in_order(gradients, counts, route.order),
            encoder.counts(route.send), encoder.counts(route.receive),
            f"the gradients of the features of microbatches {numbers[0]} to {numbers[-1]}",
        )  # fmt: skip
        encoded, self._encoded = self._encoded, None
        if encoded is not None and encoded.requires_grad:
            encoder.backward(encoded, got, self._gradients)


def _check_alike(by_rank: Sequence[tuple[bool, Sequence[Any]]]) -> None:
    """Raise ValueError, on all ranks, if they would not enter the same exchanges."""
    counts = [len(sizes) for _, sizes in by_rank]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the ranks have {', '.join(map(str, counts))} microbatches in this step: give as many "
            "on every rank, None for one without images"
        )
    if len({trained for trained, _ in by_rank}) > 1:
        wrong = [rank for rank, (trained, _) in enumerate(by_rank) if not trained]
        raise ValueError(
            f"the encoder is trained, but not on ranks {', '.join(map(str, wrong))}: freeze the "
            "same parameters, and use torch.no_grad(), on all ranks or on none"
        )


def _gradient(microbatch: int, features: Tensor) -> Tensor:
    """Return the gradient of a microbatch's features. Raises RuntimeError if there is none."""
    if features.grad is not None:
        return features.grad
    if features.numel():
        raise RuntimeError(
            f"the features of microbatch {microbatch} have no gradient: call backward() of its "
            "loss before, and see that the loss depends on them (a first stage without anything "
            "to train makes no graph); or freeze the encoder"
        )
    return torch.zeros_like(features)


def _in_order(tensor: Tensor, counts: Sequence[int], order: Sequence[int]) -> Tensor:
    """Return a tensor whose items, `counts` rows each, stand in another order.

    >>> _in_order(torch.tensor([1, 2, 3]), [1, 2], [1, 0]).tolist()
    [2, 3, 1]
    """
    if list(order) == list(range(len(order))):
        return tensor
    ends = list(accumulate(counts, initial=0))
    rows = chain.from_iterable(range(ends[item], ends[item + 1]) for item in order)
    return tensor[torch.tensor(list(rows), device=tensor.device)]
