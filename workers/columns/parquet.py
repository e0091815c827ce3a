"""Presents parquet files as a map-style dataset: any row, by its index."""

import bisect
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...balancer.planning.kernels.arrays import Int64
from .dataset import ColumnDataset, read_keys
from .row_form import RowForm
from .row_groups import RowGroups, open_file, read_columns, read_footer


class ParquetDataset(ColumnDataset):
    """Samples of parquet files, in order of files and rows; a torch dataset and a source.

    A transform gets a row as a sample of a tar: "__key__", "json" (a dict of the columns), images,
    videos and sounds as members (img0.jpg ...). Raises FileNotFoundError, ImportError without
    pyarrow, and ValueError for damaged footers, files of unlike columns, keys that occur twice,
    columns that are refused, and no rows.

    Args:
        pattern: A path, a folder (its *.parquet), a glob, a brace pattern or a list of them.
        transform: A function of the raw sample; default: images are decoded. See RecordDataset.
        columns: The columns that are read; default all whose names do not begin with "__".
        images: The columns that hold images; default: those that are so by their name or type.
        key: The column of names, no two alike, "" for none; default `__key__`, else FILE:ROW.
        root: The folder that all that is read must be below; default: none.
        cache: The folder of indexes and costs; default $COUNTERPOISE_CACHE, else beside the files.
        cost: A function of a loaded sample; default: the transform's probe, or the headers.
        lengths: The column that says a cost, by resource: integers, or lists, whose lengths count.
            Then nothing is read to find costs but these columns; default: none.
        media: The folder of the files that columns name by path; default: that of the row's file.
    """

    FORMAT, EXTENSIONS = "parquet", (".parquet",)

    def open_files(self) -> Sequence[int]:
        """Read the footers, and the column of keys; ValueError as the class says."""
        self._groups = RowGroups()
        folder = os.path.commonpath([path.parent for path in self.files])
        self._names = [os.path.relpath(path, folder) for path in self.files]
        self._footers = list[tuple[Int64, str]]()
        keys, forms = list[tuple[str, Any]](), list[RowForm]()
        for path in self.files:
            try:
                with open_file(path) as file:
                    forms.append(self.read_form(file.schema_arrow, str(path)))
                    self._footers.append(read_footer(path, file))
                    if (key := self.find_key_column(file.schema_arrow)) is not None:
                        table = read_columns(path, "the key", file.read, [key])
                        keys.append((str(path), table.column(0)))
            except ValueError as error:
                text = str(error)  # which may name the file already
                raise ValueError(text if str(path) in text else f"{path}: {text}") from None
        self.form = _same_form(forms, self.files)
        if 0 < len(keys) < len(self.files):
            raise ValueError(f"{keys[0][0]} has keys, and others have none; give key=, or key=''")
        self._keys = read_keys(keys) if keys else None
        return [int(ends[-1]) if len(ends) else 0 for ends, _ in self._footers]

    def file_digest(self, number: int) -> str:
        """Return a hash of a file's footer: its columns, and where its pages are."""
        return self._footers[number][1]

    def name(self, number: int, row: int) -> str:
        """Return a row's name."""
        if self._keys is None:
            return f"{self._names[number]}:{row}"
        return str(self._keys[self.begin(number) + row])

    def row(self, number: int, row: int, columns: Sequence[str]) -> Mapping[str, Any]:
        """Return a row's values; its row group is read unless it is held."""
        path, ends = self.files[number], self._footers[number][0]
        group = bisect.bisect_right(ends, row)
        table = self._groups.read(path, group, columns)
        self._files.check(path)
        row -= int(ends[group - 1]) if group else 0
        return {name: table.column(name)[row].as_py() for name in columns}

    def column(self, name: str) -> Iterator[Any]:
        """Yield a column of all samples, a row group at a time."""
        compute = importlib.import_module("pyarrow.compute")
        for path in self.files:
            with open_file(path) as file:
                for group in range(file.metadata.num_row_groups):
                    place = f"{path}: row group {group}"
                    table = read_columns(path, place, file.read_row_group, group, [name])
                    for part in table.column(0).chunks:
                        is_coded = hasattr(part.type, "index_type")
                        yield compute.dictionary_decode(part) if is_coded else part


def _same_form(forms: Sequence[RowForm], files: Sequence[Path]) -> RowForm:
    """Return the form that all files have; ValueError names a column that is not alike."""
    first = forms[0]
    for form, path in zip(forms, files, strict=True):
        if odd := sorted({*form.columns} ^ {*first.columns}):
            difference = f"only one of them has {', '.join(odd)}"
        elif odd := sorted({*form.images} ^ {*first.images}):
            difference = f"types differ in {', '.join(odd)}"
        else:
            continue
        raise ValueError(
            f"{path} has not the columns of {files[0]}: {difference}; name columns that all files "
            "have alike with columns=[...], or write the files again"
        )
    return first
