"""`find_costs`: what samples cost, found in the first of them: the fields whose sizes vary."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...balancer.planning.problem.options import LLM
from ..sources.labels import labels_of
from .costs import FoundCosts, FoundResource
from .fields import SampleField, find_fields
from .sizes import form_of

FIRST_SAMPLES = 256
MOST_FOUND = 8
TOKEN_IDS = "input_ids"
# Names, file names and labels vary in length too, and cost nothing.
LEAST_TEXT, LEAST_SHARE = 64, 8
# A field with its size in each sample.
Sized = tuple[SampleField, list[int]]


def find_costs(samples: Sequence[Any]) -> FoundCosts:
    """Return what the samples cost: their fields whose sizes vary, of at most 256 samples.

    Fields whose sizes are proportional, or differ by a constant, are one resource. Strings and
    bytes count where the longest has 64 characters, and all together have at least an eighth of
    what the largest such field has; of more than 8 resources the largest stay. The field
    `input_ids` is the resource "tokens"; other resources have their field's name. Raises
    ValueError for no samples, and for samples that are not of one form.
    """
    some = [samples[k] for k in range(min(len(samples), FIRST_SAMPLES))]
    _check_form(some)
    groups = _together(_varying(some))
    largest = sorted(groups, key=lambda group: -max(sum(sizes) for _, sizes in group))
    found: list[FoundResource] = []
    for group in groups:
        if group not in largest[:MOST_FOUND]:
            continue
        resource = _named([field for field, _ in group])
        taken = sum(each.name.partition(" #")[0] == resource.name for each in found)
        name = f"{resource.name} #{taken + 1}" if taken else resource.name
        found.append(replace(resource, name=name))
    return FoundCosts(tuple(found), any(labels_of(sample) is not None for sample in some))


def _check_form(samples: Sequence[Any]) -> None:
    if not samples:
        raise ValueError("no samples to find costs in: the data set is empty")
    forms = [form_of(sample) for sample in samples]
    first = next((form for form in forms if form != "empty"), forms[0])
    for ordinal, form in enumerate(forms):
        if form not in (first, "empty"):
            one, other = samples[forms.index(first)], samples[ordinal]
            raise ValueError(
                f"sample {ordinal} of the epoch's order is a {type(other).__name__} and others are "
                f"a {type(one).__name__}: no costs are found in samples of different forms; say "
                "what they cost with cost="
            )


def _is_text(field: SampleField) -> bool:
    return field.kind in ("text", "bytes")


def _is_long(sizes: list[int], most: int) -> bool:
    return max(sizes) >= LEAST_TEXT and sum(sizes) * LEAST_SHARE >= most


def _varying(samples: Sequence[Any]) -> list[Sized]:
    """Return the fields whose sizes are not all the same, without short texts."""
    found = [(field, [field.size(each) for each in samples]) for field in find_fields(samples)]
    most_text = max((sum(sizes) for field, sizes in found if _is_text(field)), default=0)
    return [
        (field, sizes)
        for field, sizes in found
        if len(set(sizes)) > 1 and (not _is_text(field) or _is_long(sizes, most_text))
    ]


def _together(fields: Sequence[Sized]) -> list[list[Sized]]:
    """Return the fields in groups that always vary together."""
    groups: list[list[Sized]] = []
    for field in fields:
        own = next((g for g in groups if any(_vary_together(field[1], s) for _, s in g)), None)
        if own is None:
            groups.append([field])
        else:
            own.append(field)
    return groups


def _vary_together(one: list[int], other: list[int]) -> bool:
    """Return whether sizes are proportional, or differ by a constant.

    >>> [_vary_together([1, 2], other) for other in ([3, 6], [4, 5], [3, 5])]
    [True, True, False]
    """
    if len({a - b for a, b in zip(one, other, strict=True)}) == 1:
        return True
    sums = sum(one), sum(other)
    return all(a * sums[1] == b * sums[0] for a, b in zip(one, other, strict=True))


def _named(group: list[SampleField]) -> FoundResource:
    """Return the resource of fields that vary together, by the field that people know best."""
    names = tuple(field.name for field in group)
    for field in group:
        if field.last == TOKEN_IDS and field.kind == "numbers":
            return FoundResource(LLM, field, names)
    for field in group:
        if field.kind == "tiles":
            return FoundResource("tiles", field, names)
    return FoundResource(names[0], group[0], names)
