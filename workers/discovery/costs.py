"""`FoundCosts`: what samples cost, as it was found in the first of them, and how to measure it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..sources.labels import LABEL_TOKENS, count_label_tokens, labels_of
from .fields import KINDS, SampleField
from .work import FoundWork


@dataclass(frozen=True, slots=True)
class FoundResource:
    """A cost of samples: the field that is measured, and the names of all that vary with it.

    A size is rounded up to `multiple`, and is at most `limit`, as the batch has it.
    """

    name: str
    field: SampleField
    fields: tuple[str, ...]
    multiple: int = 1
    limit: int | None = None

    def cost(self, sample: Any) -> int:
        """Return what a sample costs; ValueError where it has no such field."""
        return self.rounded(self.field.size(sample))

    def rounded(self, size: int) -> int:
        """Return a size as the batch has it."""
        size = -(-size // self.multiple) * self.multiple
        return size if self.limit is None else min(size, self.limit)


@dataclass(frozen=True, slots=True)
class FoundCosts:
    """The costs that were found, and how to measure them in any sample.

    label_tokens: whether samples have labels, whose tokens are counted beside what costs.

    >>> field = SampleField(("input_ids",), "numbers")
    >>> found = FoundCosts((FoundResource("tokens", field, ("input_ids",)),))
    >>> found.resources, found.measure({"input_ids": [5]}), found.describe()
    (('tokens',), {'tokens': 1}, 'tokens (input_ids)')
    >>> FoundCosts.from_dict(found.to_dict()) == found
    True
    """

    found: tuple[FoundResource, ...]
    label_tokens: bool = False

    @property
    def work(self) -> tuple[str, ...]:
        """The names of what costs; none where all samples cost the same."""
        return tuple(each.name for each in self.found)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all that `measure` returns: the work, and label tokens last."""
        return self.work + ((LABEL_TOKENS,) if self.label_tokens else ())

    def measure(self, sample: Any) -> dict[str, int]:
        """Return a sample's costs; ValueError, with the field, where it lacks what others have."""
        costs = {each.name: each.cost(sample) for each in self.found}
        if self.label_tokens:
            labels = labels_of(sample)
            costs[LABEL_TOKENS] = 0 if labels is None else count_label_tokens(labels)
        return costs

    def describe(self) -> str:
        """Return the names, each with its field where that is called otherwise."""
        if not self.found:
            return "nothing (all samples are of one size)"
        shown = ((each.name, each.field.name) for each in self.found)
        return ", ".join(name if name == field else f"{name} ({field})" for name, field in shown)

    def only(self, names: Iterable[str]) -> "FoundCosts":
        """Return the costs with some of the work; label tokens stay."""
        kept = set(names)
        return replace(self, found=tuple(each for each in self.found if each.name in kept))

    def as_batched(self, work: FoundWork) -> "FoundCosts":
        """Return the costs as batches have them: rounded, cut, without what is constant there."""
        found = []
        for each in self.found:
            one = work.of(each.name)
            if one is None:
                found.append(each)
            elif one.work != "constant":
                found.append(replace(each, multiple=one.multiple, limit=one.limit))
        return replace(self, found=tuple(found))

    def to_dict(self) -> dict[str, Any]:
        """Return the value as JSON can hold it, for a ledger."""
        found = [
            {**asdict(each), "field": {**asdict(each.field), "path": list(each.field.path)}}
            | {"fields": list(each.fields)}
            for each in self.found
        ]
        return {"found": found, "label_tokens": self.label_tokens}

    @classmethod
    def from_dict(cls, given: Any) -> "FoundCosts":
        """Return what `to_dict` gave; ValueError for anything else."""
        try:
            found = tuple(_resource(each) for each in given["found"])
            label_tokens = given["label_tokens"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"found costs cannot be read: {error!r:.200}") from None
        if type(label_tokens) is not bool:
            raise ValueError(f"found costs: label_tokens is {label_tokens!r:.80}, needed is a bool")
        return cls(found, label_tokens)


def _resource(given: Mapping[str, Any]) -> FoundResource:
    field = given["field"]
    path, kind, optional = tuple(field["path"]), field["kind"], field["optional"]
    multiple, limit, names = given["multiple"], given["limit"], tuple(given["fields"])
    # A ledger may be damaged: isinstance would take True for a multiple of 1.
    is_right = (
        all(step is None or type(step) in (str, int) for step in path)
        and kind in KINDS
        and type(optional) is bool
        and all(type(name) is str for name in (given["name"], *names))
        and type(multiple) is int
        and multiple >= 1
        and (limit is None or (type(limit) is int and limit >= 1))
    )
    if not is_right:
        raise ValueError(f"found costs cannot be read: {given!r:.200}")
    return FoundResource(given["name"], SampleField(path, kind, optional), names, multiple, limit)


def is_of_text(resource: FoundResource) -> bool:
    """Return whether a resource is measured in characters or bytes."""
    return resource.field.kind in ("text", "bytes")
