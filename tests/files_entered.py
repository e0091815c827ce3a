"""How many files of ours a batch of a local balanced loop goes through: `-m tests.files_entered`.

Counted are the files of the product in which a function is called while `next(iter(loader))` runs,
in this process, after a warm-up epoch. The data are four samples of a tar; there are no workers;
the plan, which is that of the loop in tests/size.py, is made meanwhile, too.
"""

import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

import counterpoise as cp
from tests.imports import modules
from tests.tars import write_tar

# A limit that only falls, as those of tests/size.py; it aims at 32.
LIMIT = 40
SAMPLES = 4


class Tokens:
    """A transform: a sample's text as tokens."""

    def __call__(self, sample: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([*map(ord, sample["txt"])])}


def files_entered() -> list[str]:
    """Return the modules of the product that the batch goes through."""
    with tempfile.TemporaryDirectory(prefix="counterpoise-files-") as folder:
        texts = {f"{number}.txt": b"text" for number in range(SAMPLES)}
        data = cp.TarDataset(write_tar(Path(folder, "a.tar"), texts), Tokens(), cache=folder)
        costs = {"tokens": [3 + number for number in range(SAMPLES)]}
        loader: Any = cp.DataLoader(data, 2, shuffle=True, balance="fixed", cost=costs)
        for _ in loader:
            pass
        names: set[str] = set()

        def note(frame: types.FrameType, event: str, _: Any) -> None:
            if event == "call":
                names.add(str(Path(frame.f_code.co_filename).resolve()))

        sys.setprofile(note)
        try:
            next(iter(loader))
        finally:
            sys.setprofile(None)
        loader.close()
    return sorted(name for name, path in modules().items() if str(path) in names)


if __name__ == "__main__":
    entered = files_entered()
    print(*entered, sep="\n")
    print(f"{len(entered)} files (limit {LIMIT})")
