"""What parquet files and Hugging Face's data sets have in common: samples by rows and columns."""

import importlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ..jsonl.media_folder import MediaFolder
from ..jsonl.record_form import raw_form
from ..sources.costs import checked_table
from ..sources.file_patterns import Pattern
from ..sources.interface import Cost, Sample
from ..sources.records import RecordDataset, Transform
from .row_form import RowForm, row_form

KEY = "__key__"
Names = str | Sequence[str] | None


class ColumnDataset(RecordDataset):
    """Samples of a table's rows; for its arguments see ParquetDataset.

    A format is a subclass that has what is abstract here and in RecordDataset, but `read`, and sets
    `form` when it opens files.
    """

    MAY_REPEAT = False  # they are compared as a column
    form: RowForm

    def __init__(
        self,
        pattern: Pattern,
        transform: Transform | None = None,
        columns: Names = None,
        images: Names = None,
        key: str | None = None,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        cost: Callable[[Sample], Cost] | None = None,
        lengths: Mapping[str, str] | None = None,
        media: str | Path | None = None,
    ) -> None:
        if cost is not None and lengths:
            raise ValueError("both cost= and lengths= say what samples cost; give one of them")
        arrow()  # who lacks it is told so before any file is looked for
        if not isinstance(media, str | Path | None) or not isinstance(key, str | None):
            raise ValueError(f"media and key are texts, got {media!r:.80} and {key!r:.80}")
        self._lengths = dict(lengths or {})
        self.arguments = {
            "columns": column_names(columns, "columns"),
            "images": column_names(images, "images"),
            "key": key,
            "lengths": self._lengths,
            "media": media,
        }
        super().__init__(pattern, transform, root, cache, cost)

    # What a format says.

    @abstractmethod
    def row(self, number: int, row: int, columns: Sequence[str]) -> Mapping[str, Any]:
        """Return the values in a row of a file as Python's; ValueError where they are damaged."""

    @abstractmethod
    def column(self, name: str) -> Iterable[Any]:
        """Return a column of all samples, as Arrow arrays that follow each other."""

    # What both have.

    def find_key_column(self, schema: Any) -> str | None:
        """Return the column of keys in an Arrow schema; None where rows are named by number."""
        if (key := self.arguments["key"]) is not None:
            return key or None
        return KEY if KEY in schema.names else None

    def read_form(self, schema: Any, where: str) -> RowForm:
        """Return the form of rows of that Arrow schema; ValueError with the file's name."""
        try:
            for name in [*filter(None, [self.find_key_column(schema)]), *self._lengths.values()]:
                if name not in schema.names:
                    raise ValueError(f"no column {name!r}; there are {', '.join(schema.names)}")
            return row_form(schema, self.arguments["columns"], self.arguments["images"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def read(self, number: int, row: int, headers: bool) -> dict[str, Any]:
        """Return the fields as "json" and the media by extension; with `headers` these as files."""
        if number not in self._folders:
            file = self.files[number] if self.files else Path()
            self._folders[number] = MediaFolder(self.arguments["media"], file, self.root)
        folder = self._folders[number]
        record = self.form.record(self.row(number, row, self.form.columns))
        return raw_form(record, folder.open if headers else folder.read, headers)

    @cached_property
    def cost_table(self) -> dict[str, Int64]:
        """The costs of all samples that columns say, (n,) by resource."""
        columns = {
            resource: np.concatenate([_convert_costs(part, name) for part in self.column(name)])
            for resource, name in self._lengths.items()
        }
        return checked_table(columns, len(self))

    def open(self) -> None:
        """Look at the files anew."""
        self.__dict__.pop("cost_table", None)
        self._folders = dict[int, MediaFolder]()
        super().open()
        self.unlike_json = self.form.unlike_json


def arrow() -> Any:
    """Return pyarrow, which is imported only where its data are read."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError(
            "parquet files and Hugging Face's data sets are read with pyarrow; "
            "pip install 'counterpoise[parquet]'"
        ) from error


def read_keys(columns: Sequence[tuple[str, Any]]) -> Any:
    """Return the keys of all rows as an Arrow array of texts, from (file, column)s.

    Raises ValueError for a row without a key, and for a key that two rows have.
    """
    pa, compute = arrow(), importlib.import_module("pyarrow.compute")
    for where, column in columns:
        if column.null_count:
            row = compute.index(column.is_null(), True).as_py()
            raise ValueError(f"{where}: row {row} has no key; give another column as key=, or none")
    texts = [compute.cast(column, pa.large_string()) for _, column in columns]
    chunks = [chunk for text in texts for chunk in text.chunks]  # none of no rows
    keys = pa.chunked_array(chunks, pa.large_string()).combine_chunks()
    if compute.count_distinct(keys).as_py() < len(keys):
        counts = compute.value_counts(keys)
        twice = counts.filter(compute.greater(counts.field("counts"), 1))[0]["values"]
        raise ValueError(f"key {twice} stands in two rows; keys must differ over all files")
    return keys


def _convert_costs(column: Any, name: str) -> Int64:
    """Return integers, or the lengths of lists, as int64 (n,); ValueError for null."""
    compute = importlib.import_module("pyarrow.compute")
    column = getattr(column, "storage", column)  # of Array2D, which is an extension of Arrow's
    if hasattr(column.type, "value_type"):
        column = compute.list_value_length(column)
    if not str(column.type).startswith(("int", "uint")):
        raise ValueError(f"lengths: column {name!r} has {column.type}, not integers or lists")
    if column.null_count:
        raise ValueError(
            f"lengths: column {name!r} has no value in {column.null_count} rows: fill them, or "
            "leave these rows out"
        )
    costs: Int64 = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return costs


def column_names(names: Names, argument: str) -> list[str] | None:
    """Return names of columns as a list; ValueError where a description has something else."""
    names = [names] if isinstance(names, str) else names
    is_list = names is None or isinstance(names, list | tuple)
    if not is_list or not all(isinstance(name, str) for name in names or ()):
        raise ValueError(f"{argument} is {names!r:.80}, needed is a list of columns")
    return None if names is None else list(names)
