"""What a reader of broken-samples.md has: data with a damaged sample, and lines of text."""

from pathlib import Path
from typing import Any


class _Texts:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 17:
            raise ValueError("damaged")
        return {"input_ids": list(range(index % 9 + 1))}


dataset = _Texts()
Path("pairs.txt").write_text("1\ntwo\n3\n4\n")


def parse(line: str) -> int:
    """Return the number of a line; ValueError where it is none."""
    return int(line)
