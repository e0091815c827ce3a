"""`column_costs`: costs of a Hugging Face data set from its Arrow columns, without decoding."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..sources.labels import LABEL_TOKENS, count_label_tokens
from .costs import FoundCosts, FoundResource
from .finding import TOKEN_IDS

LENGTH = "length"


@dataclass(frozen=True, slots=True)
class ColumnCosts:
    """Costs by the index of a sample: lengths of lists in Arrow, or a column of them.

    columns: for each resource the column, and whether its values are the costs themselves.
    """

    dataset: Any
    found: FoundCosts
    columns: Mapping[str, tuple[str, bool]]

    def cost(self, index: int) -> dict[str, int]:
        """Return a sample's costs: what `found.measure(dataset[index])` would return."""
        table = self.dataset.data.table
        row = self._row(index)
        costs = {}
        for each in self.found.found:
            column, is_size = self.columns[each.name]
            value = table.column(column)[row]
            size = value.as_py() if is_size else _size(value)
            costs[each.name] = each.rounded(int(size or 0))
        if self.found.label_tokens:
            labels = table.column("labels")[row]
            values = labels.values if labels.is_valid else None
            costs[LABEL_TOKENS] = 0 if values is None else count_label_tokens(values)
        return costs

    def _row(self, index: int) -> int:
        """Return where in the table a sample is: `select` and `shuffle` keep the table."""
        if not -len(self.dataset) <= index < len(self.dataset):
            raise IndexError(f"index {index} is outside of {len(self.dataset)} samples")
        index %= len(self.dataset)
        chosen = getattr(self.dataset, "_indices", None)
        return index if chosen is None else int(chosen.column(0)[index].as_py())


def column_costs(dataset: Any, found: FoundCosts) -> ColumnCosts | None:
    """Return the costs that a datasets.Dataset has in its columns; None where it has not all.

    A resource is there if its field is a column of lists of numbers; the tokens, or the only
    resource, also if a column "length" has integers. None for other data sets, and for one with a
    transform, whose samples are not what its columns are.
    """
    library = sys.modules.get("datasets")
    if library is None or not isinstance(dataset, _dataset_type(library)):
        return None
    # A "custom" format is a transform of the user's, whose samples are not what columns hold.
    given = dataset.format
    if given["type"] == "custom" or not found.found:
        return None
    schema = dataset.data.schema
    types = {name: schema.field(name).type for name in given["columns"] if name in schema.names}
    alone = len(found.found) == 1
    columns = {each.name: _column_of(each, types, alone) for each in found.found}
    labelled = not found.label_tokens or _is_list_of_numbers(types.get("labels"))
    known = {name: column for name, column in columns.items() if column is not None}
    return ColumnCosts(dataset, found, known) if labelled and len(known) == len(columns) else None


def _dataset_type(library: Any) -> Any:
    return getattr(library, "Dataset", ())


def _column_of(
    each: FoundResource, types: Mapping[str, Any], alone: bool
) -> tuple[str, bool] | None:
    """Return the column of a resource, and whether it has the costs themselves; None: no column."""
    if (alone or each.field.last == TOKEN_IDS) and _is_integer(types.get(LENGTH)):
        return LENGTH, True
    is_top = len(each.field.path) == 1 and each.field.kind == "numbers"
    return (
        (each.field.name, False)
        if is_top and _is_list_of_numbers(types.get(each.field.name))
        else None
    )


def _size(value: Any) -> int:
    """Return the numbers in a list of Arrow, nested ones too."""
    values = value.values if value.is_valid else None
    while values is not None and _is_list(values.type):
        values = values.flatten()
    return 0 if values is None else len(values)


def _types() -> Any:
    """Return pyarrow.types: there where a data set of Arrow is, and imported only then."""
    return importlib.import_module("pyarrow.types")


def _is_list(kind: Any) -> bool:
    types = _types()
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_list_of_numbers(kind: Any) -> bool:
    if kind is None or not _is_list(kind):
        return False
    while _is_list(kind):
        kind = kind.value_type
    types = _types()
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_integer(kind: Any) -> bool:
    return kind is not None and bool(_types().is_integer(kind))
