"""What a reader of docs/from/ray-data.md has: a folder of parquet files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

if not Path("rows").exists():
    Path("rows").mkdir()
    _texts = ["red " * (n % 30 + 1) for n in range(96)]
    _rows = [{"id": f"r{n}", "text": text, "length": len(text)} for n, text in enumerate(_texts)]
    pq.write_table(pa.Table.from_pylist(_rows), "rows/0.parquet", row_group_size=16)
