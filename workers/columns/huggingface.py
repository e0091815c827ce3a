"""Presents data sets of Hugging Face as a source: their tables in Arrow, and rows of these.

A folder of `save_to_disk` is read with pyarrow alone, whose files are mapped into memory, so that a
row is read without its neighbours. What `select`, `filter`, `shuffle`, `train_test_split` and
`interleave_datasets` make are rows of a table in another order. A row keeps its name, and what it
was found to cost, in all of them.
"""

import bisect
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ..sources.data_identity import spread, summarize_content
from ..sources.fingerprint import digest, digest_arrays
from ..sources.interface import Cost, Sample
from ..sources.records import Transform
from .dataset import ColumnDataset, Names, read_keys
from .hf_folder import STATE, arrow_files, map_table, pack_rows, rows_on_disk, unpack_rows

Rows = Sequence[int] | np.ndarray | None


class HFDataset(ColumnDataset):
    """Samples of a Hugging Face data set; a torch dataset and a source.

    A transform gets a row as a sample of a tar: "__key__", "json" (a dict of the columns), images,
    videos and sounds as members (img0.jpg ...). Images are not decoded to find costs. A row that
    `select` names twice is NAME#2 the second time. Workers elsewhere read folders below their root:
    a data set in memory, or one that `map` has changed, is none (ValueError from `spec`). Raises
    FileNotFoundError, ImportError without pyarrow, and ValueError for what is no such folder, and
    for damaged files.

    Args:
        dataset: The folder that `save_to_disk` made, or a datasets.Dataset, from disk or in memory.
        transform: A function of the raw sample; default: images are decoded. See RecordDataset.
        columns: The columns that are read; default all whose names do not begin with "__".
        images: The columns that hold images; default: those that are so by their name or type.
        key: The column of names, no two alike, "" for none; default `__key__`. Else row numbers.
        root: The folder that all that is read must be below; default: none.
        cache: The folder of indexes and costs; default $COUNTERPOISE_CACHE, else beside the files.
        cost: A function of a loaded sample; default: the transform's probe, or the headers.
        lengths: The column that says a cost, by resource: integers, or lists, whose lengths count.
            Then nothing is read to find costs but these columns; default: none.
        media: The folder of the files that columns name by path; default: that of the row's file.
        rows: The numbers of the folder's rows that are read, in this order; default all.
    """

    FORMAT, MARKERS = "hf", (STATE,)

    def __init__(
        self,
        dataset: Any,
        transform: Transform | None = None,
        columns: Names = None,
        images: Names = None,
        key: str | None = None,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        cost: Callable[[Sample], Cost] | None = None,
        lengths: Mapping[str, str] | None = None,
        media: str | Path | None = None,
        rows: Rows = None,
    ) -> None:
        self._live: Any = None
        self._mapped: tuple[Path, ...] = ()  # its files
        pattern = dataset
        if not isinstance(dataset, str | Path | list | tuple):
            pattern, rows, columns = self._take_over(dataset, rows, columns)
        self._rows = unpack_rows(rows)
        super().__init__(
            pattern, transform, columns, images, key, root, cache, cost, lengths, media
        )

    def _take_over(self, dataset: Any, rows: Rows, columns: Names) -> tuple[str, Rows, Names]:
        """Return the folder and the rows of a data set; what has no folder is kept as it is."""
        kind: Any = getattr(sys.modules.get("datasets"), "Dataset", ())
        if not isinstance(dataset, kind):
            raise ValueError(
                f"a {type(dataset).__name__} is no datasets.Dataset: give a split of a DatasetDict "
                "(data['train']), a folder that save_to_disk made, or a stream to the DataLoader"
            )
        if dataset.format["type"] == "custom":
            raise ValueError(
                "the data set has a transform (set_transform), and its rows are not what its "
                "columns hold: give that as transform=, or the data set itself to the DataLoader"
            )
        if rows is not None:
            raise ValueError("rows= are those of a folder; use dataset.select(rows)")
        if columns is None:
            columns = [name for name in dataset.format["columns"] if not name.startswith("__")]
        in_memory = ("", (), np.arange(len(dataset.data)))
        name, self._mapped, whole = rows_on_disk(dataset) or in_memory
        if not name:
            self._live, name = dataset, type(dataset).__name__
        chosen = dataset._indices
        return name, whole if chosen is None else whole[chosen.column(0).to_numpy()], columns

    def find_files(self, _: Any) -> tuple[Path, ...]:
        """Return the Arrow files of the folder; none of a data set in memory."""
        if self._live is not None:
            return self._mapped
        if len(self.pattern) != 1:
            raise ValueError(
                "a data set is one folder; use torch.utils.data.ConcatDataset for more"
            )
        return arrow_files(Path(self.root or "", self.pattern[0]), self.root)

    def open_files(self) -> Sequence[int]:
        """Map the files into memory, and read the column of keys."""
        self._parts: tuple[list[int], list[Any]] | None = None
        tables = self._tables()
        where = self.pattern[0]
        self.form = self.read_form(tables[0].schema, where)
        if any(table.schema.names != tables[0].schema.names for table in tables):
            raise ValueError(f"{where}: its files have unlike columns; write it again")
        counts = [len(table) for table in tables]
        total = sum(counts)
        if self._rows is not None and np.array_equal(self._rows, np.arange(total)):
            self._rows = None  # the whole table, in its order
        if self._rows is not None and len(self._rows):
            least, most = int(self._rows.min()), int(self._rows.max())
            if least < 0 or most >= total:
                raise ValueError(f"{where} has {total} rows, and rows= names {least} to {most}")
        key = self.find_key_column(tables[0].schema)
        keys = [(where, table.column(key)) for table in tables if key is not None]
        self._keys = read_keys(keys) if keys else None
        return counts

    @cached_property
    def _repeats(self) -> Int64 | None:
        """Return how often each sample's row came before (n,); None where no row comes twice."""
        if self._rows is None or len(np.unique(self._rows)) == len(self._rows):
            return None
        order = np.argsort(self._rows, kind="stable")
        is_first = np.diff(self._rows[order], prepend=-1) > 0
        counts = np.arange(len(order))
        repeats = np.empty_like(counts)
        repeats[order] = counts - np.maximum.accumulate(np.where(is_first, counts, 0))
        return repeats

    def _tables(self) -> list[Any]:
        return [map_table(path) for path in self.files] or [self._live.data.table]

    def _batches(self) -> tuple[list[int], list[Any]]:
        """Return the ends of the record batches of all tables, and the batches."""
        if self._parts is None:
            for path in self.files:
                self._files.check(path)
            batches = [batch for table in self._tables() for batch in table.to_batches()]
            self._parts = list(itertools.accumulate(map(len, batches))), batches
        return self._parts

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else super().__len__()

    def _row(self, index: int) -> int:
        """Return where in the whole table a sample is."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return int(index if self._rows is None else self._rows[index])

    def place(self, index: int) -> tuple[int, int]:
        """Return a sample's file, by its number, and its row there, which views keep."""
        return self.in_files(self._row(index))

    def key(self, index: int) -> str:
        """Return a row's name; IndexError outside 0 <= index < len."""
        row = self._row(index)
        name = str(row if self._keys is None else self._keys[row])
        again = 0 if self._repeats is None else int(self._repeats[index])
        return f"{name}#{again + 1}" if again else name

    def row(self, number: int, row: int, columns: Sequence[str]) -> Mapping[str, Any]:
        """Return a row's values; nothing is read but these."""
        self.check(number)
        ends, batches = self._batches()
        row += self.begin(number)
        number = bisect.bisect_right(ends, row)
        row -= ends[number - 1] if number else 0
        chosen = batches[number].select(list(columns)).slice(row, 1)
        # Offsets in a damaged file may point anywhere.
        chosen.validate(full=True)
        return {name: chosen.column(name)[0].as_py() for name in columns}

    def column(self, name: str) -> Iterator[Any]:
        """Yield a column of all samples; of a view, all at once."""
        pa = importlib.import_module("pyarrow")
        parts = [batch.column(name) for batch in self._batches()[1]]
        if self._rows is not None:
            parts = pa.chunked_array(parts).take(pa.array(self._rows)).chunks
        yield from (p.dictionary_decode() if hasattr(p.type, "index_type") else p for p in parts)

    def file_digest(self, number: int) -> str:
        """Return a hash of a file's size and its ends; in memory, of some rows.

        Hugging Face's own fingerprint depends on times of files, and on chance for some functions.
        """
        if self._live is not None:
            table = self._tables()[number]
            sampled_rows = [
                summarize_content(table.slice(row, 1).to_pylist()) for row in spread(len(table))
            ]
            return digest([str(table.schema.remove_metadata()), len(table), sampled_rows])
        return super().file_digest(number)

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of the table and of the rows; "" of first samples of a view."""
        if self._rows is None:
            return super().data_digest(samples)
        whole = super().data_digest()
        return digest([whole, digest_arrays(b"", self._rows)]) if samples is None else ""

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able description; ValueError for what is in no folder."""
        if self._live is not None:
            raise ValueError(
                "workers elsewhere cannot read a data set that is in memory, or that map, "
                "concatenate_datasets or interleave_datasets made: save it with "
                "save_to_disk(FOLDER) below their root, and give HFDataset(FOLDER)"
            )
        rows = {} if self._rows is None else {"rows": pack_rows(self._rows)}
        return {**super().spec(), **rows}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_parts": None}
