"""`find_costs`: what samples cost, found in the first of them: the fields whose sizes vary.

`column_costs` has the same costs from a Hugging Face data set's Arrow columns, without decoding.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...balancer.planning.problem.options import LLM
from ..sources.costs import sample_nbytes
from ..sources.interface import Probe
from ..sources.labels import LABEL_TOKENS, count_label_tokens, find_labels
from ..sources.plain import PlainSource
from .costs import FoundCosts, FoundResource
from .fields import SampleField, find_fields, find_form

# Samples of epoch 0's order that are looked at, and the bytes of them that are held.
FIRST, FIRST_BYTES = 64, 1 << 28
FIRST_SAMPLES = 256
MOST_FOUND = 8
TOKEN_IDS = "input_ids"
# Names, file names and labels vary in length too, and cost nothing.
LEAST_TEXT, LEAST_SHARE = 64, 8
# A field with its size in each sample.
Sized = tuple[SampleField, list[int]]


def hold_first(samples: Iterable[Any], least: int) -> list[Any]:
    """Return samples until they are too large to hold, but `least` where there are as many.

    >>> hold_first(["a", "b"], 1)
    ['a', 'b']
    """
    nbytes, held = 0, list[Any]()
    for sample in samples:
        held.append(sample)
        nbytes += sample_nbytes(sample)
        if nbytes > FIRST_BYTES and len(held) >= least:
            break
    return held


def find_costs(samples: Sequence[Any]) -> FoundCosts:
    """Return what the samples cost: their fields whose sizes vary, of at most 256 samples.

    Fields whose sizes are proportional, or differ by a constant, are one resource. Strings and
    bytes count where the longest has 64 characters, and all together have at least an eighth of
    what the largest such field has; strings beside `input_ids` do not, which are those texts. Of
    more than 8 resources the largest stay. The field `input_ids` is the resource "tokens"; other
    resources have their field's name. Raises ValueError for no samples, and for samples that are
    not of one form.
    """
    first_samples = [samples[k] for k in range(min(len(samples), FIRST_SAMPLES))]
    _check_form(first_samples)
    groups = _group_fields(_find_varying(first_samples))
    largest = sorted(groups, key=lambda group: -max(sum(sizes) for _, sizes in group))
    resources: list[FoundResource] = []
    for group in groups:
        if group not in largest[:MOST_FOUND]:
            continue
        resource = _name_resource([field for field, _ in group])
        taken = sum(prior.name.partition(" #")[0] == resource.name for prior in resources)
        name = f"{resource.name} #{taken + 1}" if taken else resource.name
        resources.append(replace(resource, name=name))
    is_labelled = any(find_labels(sample) is not None for sample in first_samples)
    return FoundCosts(tuple(resources), is_labelled)


def _check_form(samples: Sequence[Any]) -> None:
    if not samples:
        raise ValueError("no samples to find costs in: the data set is empty")
    forms = [find_form(sample) for sample in samples]
    first = next((form for form in forms if form != "empty"), forms[0])
    for ordinal, form in enumerate(forms):
        if form not in (first, "empty"):
            usual, odd = type(samples[forms.index(first)]), type(samples[ordinal])
            raise ValueError(
                f"sample {ordinal} of the epoch's order is a {odd.__name__} and others are "
                f"a {usual.__name__}: no costs are found in samples of different forms; say "
                "what they cost with cost="
            )


def _find_varying(samples: Sequence[Any]) -> list[Sized]:
    """Return the fields whose sizes are not all the same, without texts that are no work."""
    fields = list(find_fields(samples))
    # Strings beside token ids are the texts that these were made of.
    if any(field.last == TOKEN_IDS and field.kind == "numbers" for field in fields):
        fields = [field for field in fields if field.kind != "text"]
    sized = [(field, [field.size(sample) for sample in samples]) for field in fields]
    most_text = max((sum(sizes) for field, sizes in sized if field.is_text), default=0)
    varying = [(field, sizes) for field, sizes in sized if len(set(sizes)) > 1]
    return [
        (field, sizes)
        for field, sizes in varying
        if not field.is_text or (max(sizes) >= LEAST_TEXT and sum(sizes) * LEAST_SHARE >= most_text)
    ]


def _group_fields(fields: Sequence[Sized]) -> list[list[Sized]]:
    """Return the fields in groups that always vary together."""
    groups: list[list[Sized]] = []
    for field, sizes in fields:
        for group in groups:
            if any(_vary_together(sizes, grouped) for _, grouped in group):
                group.append((field, sizes))
                break
        else:
            groups.append([(field, sizes)])
    return groups


def _vary_together(first: list[int], second: list[int]) -> bool:
    """Return whether sizes are proportional, or differ by a constant.

    >>> [_vary_together([1, 2], other) for other in ([3, 6], [4, 5], [3, 5])]
    [True, True, False]
    """
    if len({a - b for a, b in zip(first, second, strict=True)}) == 1:
        return True
    sums = sum(first), sum(second)
    return all(a * sums[1] == b * sums[0] for a, b in zip(first, second, strict=True))


def _name_resource(group: list[SampleField]) -> FoundResource:
    """Return the resource of fields that vary together, by the field that people know best."""
    names = tuple(field.name for field in group)
    for field in group:
        if field.last == TOKEN_IDS and field.kind == "numbers":
            return FoundResource(LLM, field, names)
    for field in group:
        if field.kind == "tiles":
            return FoundResource("tiles", field, names)
    return FoundResource(names[0], group[0], names)


LENGTH = "length"


@dataclass(frozen=True, slots=True)
class ColumnCosts:
    """Costs by the index of a sample, from Arrow: lengths of lists, a column of them, or headers.

    columns: the column of each resource: the costs themselves, lists whose numbers are counted, or
    images (lists of them, too) whose headers say their pixels.
    """

    dataset: Any
    found_costs: FoundCosts
    columns: Mapping[str, str]

    def cost(self, index: int) -> dict[str, int]:
        """Return a sample's costs: what `found_costs.measure(dataset[index])` would return."""
        table = self.dataset.data.table
        chosen = self.dataset._indices  # `select` and `shuffle` keep the table
        row = index if chosen is None else int(chosen.column(0)[index].as_py())
        costs = {}
        for resource in self.found_costs.found:
            column = self.columns[resource.name]
            value = table.column(column)[row]
            if column == LENGTH:
                size = int(value.as_py() or 0)
            elif resource.field.kind == "image":
                try:
                    size = _count_pixels(value.as_py())
                except (ValueError, OSError):  # a format, or a place, that only datasets reads
                    size = resource.field.size(self.dataset[index])
            else:
                size = _count_numbers(value)
            costs[resource.name] = resource.rounded(size)
        if self.found_costs.label_tokens:
            labels = table.column("labels")[row]
            costs[LABEL_TOKENS] = count_label_tokens(labels.values, self.found_costs.shift_labels)
        return costs


def column_costs(dataset: Any, costs: FoundCosts) -> ColumnCosts | None:
    """Return the costs that a datasets.Dataset has in its columns; None where it has not all.

    A resource is there if its field is a column of lists of numbers, or of images; the tokens, or
    the only resource, also if a column "length" has integers. None for other data sets, and for one
    with a transform, whose samples are not what its columns are.
    """
    known: Any = getattr(sys.modules.get("datasets"), "Dataset", ())
    # A "custom" format is a transform of the user's, whose samples are not what columns hold.
    if not isinstance(dataset, known) or dataset.format["type"] == "custom" or not costs.resources:
        return None
    schema = dataset.data.schema
    names = {name for name in dataset.format["columns"] if name in schema.names}
    types = {name: schema.field(name).type for name in names}
    alone = len(costs.found) == 1
    columns = {resource.name: _find_column(resource, types, alone) for resource in costs.found}
    is_labelled = not costs.label_tokens or _is_list(types.get("labels"))
    there = {name: column for name, column in columns.items() if column}
    return ColumnCosts(dataset, costs, there) if is_labelled and there == columns else None


def _find_column(resource: FoundResource, types: Mapping[str, Any], alone: bool) -> str:
    """Return the column of a resource; "" for none."""
    name, path, kind = resource.field.name, resource.field.path, resource.field.kind
    is_told = alone or resource.field.last == TOKEN_IDS  # by a column of lengths
    if is_told and str(types.get(LENGTH)).startswith(("int", "uint")):
        return LENGTH
    is_images = kind == "image" and path[1:] in ((), (None,))
    is_lists = kind == "numbers" and len(path) == 1 and _is_list(types.get(name))
    return name if name in types and (is_images or is_lists) else ""


def _count_pixels(value: Any) -> int:
    """Return the pixels of an encoded image (its bytes, or its path), or of a list of them."""
    from ..images.decode import image_size  # here: Pillow is imported where there are images

    if isinstance(value, list):
        return sum(map(_count_pixels, value))
    if value is None:
        return 0
    data = value["bytes"]
    return math.prod(image_size(Path(value["path"]) if data is None else data))


def _count_numbers(value: Any) -> int:
    """Return the numbers in a list of Arrow, nested ones too."""
    values = value.values if value.is_valid else None
    while values is not None and _is_list(values.type):
        values = values.flatten()
    return 0 if values is None else len(values)


def _is_list(kind: Any) -> bool:
    return str(kind).partition("<")[0] in ("list", "large_list", "fixed_size_list")


class FoundSource(PlainSource):
    """A data set whose costs were found: measured when loaded, or read from its columns."""

    def __init__(self, dataset: Any, costs: FoundCosts, key: Any) -> None:
        """`costs` measures a loaded sample, unless the data set's columns say as much."""
        super().__init__(dataset, costs.measure, key)
        self._columns: ColumnCosts | None = column_costs(dataset, costs)

    @property
    def decode_first(self) -> bool:
        """Return whether a sample has to be loaded to learn its cost."""
        return self._columns is None

    def probe(self, index: int) -> Probe:
        """Find the cost of a sample; SampleError where it is none."""
        if self._columns is None:
            return super().probe(index)
        return Probe(self.key(index), self._columns.cost(index))
