"""Describes a microbatch and its step: counts, keys, and the loss's denominators.

All counts are of samples that were delivered: holes are left out of every one of them. They are
fixed before the step's first microbatch leaves, so no rank has to ask another for a denominator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar


def moved(value: Any, device: Any, non_blocking: bool = False) -> Any:
    """Return a value with all that has a method `to(device, non_blocking=)` replaced by its result.

    Mappings, lists, tuples and named tuples become new ones of the same type; anything else stays.

    >>> import torch
    >>> batch = {"ids": torch.zeros(2), "names": ["a", "b"]}
    >>> found = moved(batch, "meta")
    >>> found["ids"].device.type, found["names"], batch["ids"].device.type
    ('meta', ['a', 'b'], 'cpu')
    """
    if callable(getattr(value, "to", None)):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, Mapping):
        inner: Any = {name: moved(field, device, non_blocking) for name, field in value.items()}
        return inner if type(value) is dict else type(value)(inner)  # type: ignore[call-arg]
    if isinstance(value, list | tuple):
        items = [moved(part, device, non_blocking) for part in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


if TYPE_CHECKING:
    # A Step without a parameter is one of any batches.
    from typing_extensions import TypeVar as TypeVarWithDefault

    BatchT = TypeVarWithDefault("BatchT", default=Any)
else:
    BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One microbatch's place in its step, and how much it, its rank and its step hold.

    Args:
        epoch, step: Where the microbatch is, from 0.
        microbatch, microbatches: Its number in its rank's step, from 0, and how many there are.
        rank, ranks: The data-parallel rank, and the number of ranks.
        samples, rank_samples, step_samples: Samples of the microbatch, of the rank's step, of all
            ranks' step.
        label_tokens, rank_label_tokens, step_label_tokens: Labels of these that are not -100 and
            are not a sample's first token, which no position predicts.
        keys: Names of the microbatch's samples.
        holes: Keys of samples that could not be used, or were to be left out; they count nowhere.
        images: Whether any sample of the microbatch has images.
        costs: Its total of each resource, padding included.
        padding: What of `costs` no sample holds.
        over_budget: Resources of which a single sample has more than the budget.
        sources: Samples of each source of a Mixture, 0 where it has none; else empty.
        after: The loader's position behind it, for `loader.state_dict(after=info)`.
        shift_labels: As in Layout: without it first tokens count, too.
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
    costs: Mapping[str, int] = field(default_factory=dict)
    padding: Mapping[str, int] = field(default_factory=dict)
    over_budget: tuple[str, ...] = ()
    sources: Mapping[str, int] = field(default_factory=dict)
    after: object = field(default=None, repr=False, compare=False)
    shift_labels: bool = True

    def to(self, *_: Any, **__: Any) -> "StepInfo":
        """Return this value: frameworks move to a device what comes with a batch, by this method.

        Lightning refuses frozen dataclasses that have none.
        """
        return self

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

    def by_rank(self) -> "tuple[Step[BatchT], ...]":
        """Return a step for each data-parallel rank, ascending, where a process gets several's."""
        ranks = sorted({info.rank for info in self.infos})
        if len(ranks) < 2:
            return (self,)
        pairs = list(zip(self.microbatches, self.infos, strict=True))
        return tuple(
            Step(
                self.number,
                tuple(batch for batch, info in pairs if info.rank == rank),
                tuple(info for _, info in pairs if info.rank == rank),
            )
            for rank in ranks
        )

    def to(self, device: Any, non_blocking: bool = False) -> "Step[BatchT]":
        """Return the step with its microbatches' tensors on a device, as frameworks ask for it."""
        batches = tuple(moved(batch, device, non_blocking) for batch in self.microbatches)
        return Step(self.number, batches, self.infos)
