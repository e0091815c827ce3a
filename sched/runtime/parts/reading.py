"""The microbatches of a step: from what a loader gives to what the parts of a model take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .step_data import MicrobatchData, StepData, TensorSpec


class MicrobatchInfo(Protocol):
    """The description of a microbatch before it is loaded, such as the loader's StepInfo."""

    @property
    def step_label_tokens(self) -> int:
        """The number of labels of the whole step, over all data-parallel ranks."""

    @property
    def step_samples(self) -> int:
        """The number of samples of the whole step."""

    @property
    def costs(self) -> Mapping[str, int]:
        """The microbatch's resources, such as its tokens."""


class StepOfMicrobatches(Protocol):
    """A rank's microbatches of a step, such as the loader's Step."""

    @property
    def microbatches(self) -> Sequence[Mapping[str, Any]]:
        """The fields that this rank needs, by name."""

    @property
    def infos(self) -> Sequence[Any]:
        """A MicrobatchInfo for each microbatch, the same on all pipeline ranks."""


# One step, or those of several data-parallel ranks.
Steps = StepOfMicrobatches | Sequence[StepOfMicrobatches]


def list_steps(step: Steps) -> list[StepOfMicrobatches]:
    """Return the steps that a rank is given, one for each data-parallel rank that it works for.

    A step may be a tuple itself; the loader's says which ranks its microbatches are of.
    """
    given: Any = step
    if not hasattr(given, "microbatches"):
        return list(given)
    by_rank = getattr(given, "by_rank", None)
    return [given] if by_rank is None else list(by_rank())


def weigh_by_token(info: MicrobatchInfo) -> float:
    """Return the weight of a loss that is a sum over labels, for the mean over the step's.

    Raises ValueError for a step without labels.
    """
    if not info.step_label_tokens:
        raise ValueError(
            "the step has no label tokens to average over; give the loader's cost= a resource "
            "'label_tokens' (the labels that count), or the pipeline weigh='sample'"
        )
    return 1.0 / info.step_label_tokens


def weigh_by_sample(info: MicrobatchInfo) -> float:
    """Return the weight of a loss that is a sum over samples, for the mean over the step's."""
    return 1.0 / max(1, info.step_samples)


def count_tokens(whose: str, tokens: Mapping[str, int] | Callable[[Any], int], info: Any) -> int:
    """Return the tokens of a microbatch, by its costs or by a function of its info.

    `whose`: who counts, for the error. Raises ValueError for a missing cost.
    """
    if getattr(info, "empty", False):
        return 0
    if not isinstance(tokens, Mapping):
        return tokens(info)
    if missing := sorted(set(tokens) - set(info.costs)):
        raise ValueError(
            f"{whose} counts its tokens by {', '.join(missing)}, the microbatch's costs are "
            f"{sorted(info.costs)}; name one of them, or give a function"
        )
    return sum(each * info.costs[resource] for resource, each in tokens.items())


WEIGHTS: Mapping[str, Callable[[Any], float]] = {
    "token": weigh_by_token,
    "sample": weigh_by_sample,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The way in which a step of the loader is read.

    `hidden`: the shape of the tensor between two stages, from a microbatch's info. `dtype`: its
    precision. `weigh`: the weight of a microbatch's loss. `shifted`: the fields that are moved by
    one place.
    """

    hidden: Callable[[Any], tuple[int, ...]]
    dtype: torch.dtype
    weigh: Callable[[Any], float]
    device: torch.device
    shifted: frozenset[str] = frozenset()

    def read(
        self,
        step: StepOfMicrobatches,
        input_gradient: tuple[bool, ...],
        training: bool,
        needed: Callable[[int], frozenset[str]],
    ) -> StepData:
        """Return the step for the parts, on the device. Raises ValueError for a missing field.

        `needed`: the fields of a microbatch that this rank reads; others stay on the host.
        """
        found = []
        for number, (batch, info) in enumerate(zip(step.microbatches, step.infos, strict=True)):
            wanted = needed(number)
            if missing := sorted(wanted - set(batch)):
                raise ValueError(
                    f"microbatch {number} has no field {', '.join(missing)}, which this rank "
                    f"needs; it has {', '.join(sorted(batch))}. Pipeline.needs says what to load"
                )
            fields = {name: self._field(name, batch[name]) for name in wanted}
            spec = TensorSpec(tuple(self.hidden(info)), self.dtype)
            found.append(MicrobatchData(fields, self.weigh(info), spec))
        return StepData(tuple(found), input_gradient, training=training)

    def _field(self, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            # Keyword arguments of other frameworks' models, on the device already.
            return value
        tensor = torch.as_tensor(value).to(self.device, non_blocking=True)
        # What comes around to the end is the label of a sample's first token, which never counts.
        return tensor.roll(-1, dims=-1) if name in self.shifted else tensor
