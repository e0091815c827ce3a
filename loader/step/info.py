"""Describes a microbatch and its step: counts, keys, and the loss's denominators.

All counts are of samples that were delivered: holes are left out of every one of them. They are
fixed before the step's first microbatch leaves, so no rank has to ask another for a denominator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    # A Step without a parameter is one of any batches.
    from typing_extensions import TypeVar as TypeVarWithDefault

    BatchT = TypeVarWithDefault("BatchT", default=Any)
else:
    BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One microbatch's place in its step, and how much it, its rank and its step hold.

    `label_tokens` counts labels that are not -100 and are not a sample's first token (no position
    predicts that one). `costs` are the microbatch's totals per resource. `holes` are the keys of
    samples that could not be used; they count nowhere else. `over_budget` names the resources of
    which the microbatch, a single sample then, has more than the budget.
    """

    epoch: int
    step: int
    microbatch: int
    microbatches: int
    rank: int
    ranks: int
    samples: int
    label_tokens: int
    rank_samples: int
    rank_label_tokens: int
    step_samples: int
    step_label_tokens: int
    keys: tuple[str, ...] = ()
    holes: tuple[str, ...] = ()
    images: bool = True
    costs: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    over_budget: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """True if the microbatch holds no sample: a zero-weight batch that fills up a step."""
        return self.samples == 0

    @property
    def last(self) -> bool:
        """True for the rank's last microbatch of the step, after which the optimizer steps."""
        return self.microbatch == self.microbatches - 1


@dataclass(frozen=True, slots=True)
class Step(Generic[BatchT]):
    """All microbatches of a rank between two optimizer steps, and a StepInfo for each."""

    number: int
    microbatches: tuple[BatchT, ...]
    infos: tuple[StepInfo, ...]

    def __post_init__(self) -> None:
        if len(self.microbatches) != len(self.infos):
            raise ValueError(
                f"step {self.number} has {len(self.microbatches)} microbatches and "
                f"{len(self.infos)} infos; give one StepInfo for each microbatch"
            )
