"""`FoundCosts`: what samples cost, as it was found in the first of them, and how to measure it.

`FoundWork` is what a microbatch costs of each resource, as it was recognised from collate_fn.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec

from ..sources.labels import LABEL_TOKENS, count_label_tokens, find_labels
from .fields import SampleField

Recognised = Literal["padded", "packed", "constant", "unrecognised"]


Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True)
class ResourceWork:
    """The cost of a microbatch in one resource, from those of its samples.

    "padded": count x largest, each size with `extra`, rounded up to `multiple` and cut at `limit`;
    "packed": the sum; "constant": always the same; "unrecognised": none of these, and no plan looks
    at it.
    """

    name: str
    work: Recognised
    multiple: int = 1
    extra: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class FoundWork:
    """The cost of a microbatch in each resource; a PlanConfig takes `padded`.

    >>> work = FoundWork((ResourceWork("tokens", "padded", 8), ResourceWork("tiles", "packed")))
    >>> work.padded, work.names("packed"), work.describe()
    (('tokens',), ('tiles',), 'tokens padded to multiples of 8, tiles add up')
    """

    resources: tuple[ResourceWork, ...]

    @property
    def padded(self) -> tuple[str, ...]:
        """The resources of which a microbatch costs count x largest."""
        return self.names("padded")

    @property
    def unrecognised(self) -> tuple[str, ...]:
        """The resources of which it was not seen how they add up."""
        return self.names("unrecognised")

    def find(self, name: str) -> ResourceWork | None:
        """Return what was found of one resource; None where it was not asked about."""
        return next((resource for resource in self.resources if resource.name == name), None)

    def describe(self) -> str:
        """Return what was found in words, without what is no resource."""
        padded = (resource for resource in self.resources if resource.work == "padded")
        parts = [f"{resource.name} padded{_describe_rounding(resource)}" for resource in padded]
        parts += [f"{n} add{'' if n[-1:] == 's' else 's'} up" for n in self.names("packed")]
        if unknown := self.unrecognised:
            parts.append(f"{' and '.join(unknown)} not recognised in the batches, and left alone")
        return ", ".join(parts) or "nothing that varies is in the batches"

    def names(self, work: Recognised) -> tuple[str, ...]:
        """Return the resources, and fields, of which a microbatch costs that."""
        return tuple(resource.name for resource in self.resources if resource.work == work)


def _describe_rounding(resource: ResourceWork) -> str:
    multiple = f" to multiples of {resource.multiple}" if resource.multiple > 1 else ""
    return multiple + (f", at most {resource.limit}" if resource.limit is not None else "")


@dataclass(frozen=True, slots=True)
class FoundResource:
    """A cost of samples: the field that is measured, and the names of all that vary with it.

    A size gets `extra`, is rounded up to `multiple` and cut at `limit`, as the batch has it.
    """

    name: str
    field: SampleField
    fields: tuple[str, ...]
    multiple: Positive = 1
    extra: int = 0
    limit: Positive | None = None

    def cost(self, sample: Any) -> int:
        """Return what a sample costs; ValueError where it has no such field."""
        return self.rounded(self.field.size(sample))

    def rounded(self, size: int) -> int:
        """Return a size as the batch has it."""
        size = -(-(size + self.extra) // self.multiple) * self.multiple
        return size if self.limit is None else min(size, self.limit)


@dataclass(frozen=True, slots=True)
class FoundCosts:
    """The costs that were found, and how to measure them in any sample.

    label_tokens: whether samples have labels, whose tokens are counted beside what costs;
    shift_labels: as in Balance.

    >>> field = SampleField(("input_ids",), "numbers")
    >>> found = FoundCosts((FoundResource("tokens", field, ("input_ids",)),))
    >>> found.resources, found.measure({"input_ids": [5]}), found.describe()
    (('tokens',), {'tokens': 1}, 'tokens (input_ids)')
    >>> FoundCosts.from_dict(found.to_dict()) == found
    True
    """

    found: tuple[FoundResource, ...]
    label_tokens: bool = False
    shift_labels: bool = True

    @property
    def work(self) -> tuple[str, ...]:
        """The names of what costs; none where all samples cost the same."""
        return tuple(resource.name for resource in self.found)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all that `measure` returns: the work, and label tokens last."""
        return self.work + ((LABEL_TOKENS,) if self.label_tokens else ())

    def measure(self, sample: Any) -> dict[str, int]:
        """Return a sample's costs; ValueError, with the field, where it lacks what others have."""
        costs = {resource.name: resource.cost(sample) for resource in self.found}
        if self.label_tokens:
            costs[LABEL_TOKENS] = count_label_tokens(find_labels(sample), self.shift_labels)
        return costs

    def describe(self) -> str:
        """Return the names, each with its field where that is called otherwise."""
        if not self.found:
            return "nothing (all samples are of one size)"
        shown = ((resource.name, resource.field.name) for resource in self.found)
        return ", ".join(name if name == field else f"{name} ({field})" for name, field in shown)

    def as_batched(self, work: FoundWork) -> "FoundCosts":
        """Return the costs as batches have them: rounded, cut, without what is no work there."""
        resources = []
        for resource in self.found:
            batched = work.find(resource.name)
            if batched is None:
                resources.append(resource)
            elif batched.work in ("padded", "packed"):
                extra, limit = batched.extra, batched.limit
                batched_cost = replace(
                    resource, multiple=batched.multiple, extra=extra, limit=limit
                )
                resources.append(batched_cost)
        return replace(self, found=tuple(resources))

    def to_dict(self) -> dict[str, Any]:
        """Return the value as JSON can hold it, for a ledger."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @classmethod
    def from_dict(cls, saved: Any) -> "FoundCosts":
        """Return what `to_dict` gave; ValueError for anything else."""
        try:
            return msgspec.convert(saved, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"found costs cannot be read: {error!s:.200}") from None
