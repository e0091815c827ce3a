"""Training scripts with a loader: left in the middle of an epoch, without a guard."""

from pathlib import Path

import pytest

from tests.trainers import run_trainer

pytestmark = pytest.mark.slow

HEAD = """
import torch
from torch.utils.data import Dataset
from counterpoise.loader import DataLoader

class Squares(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.full((100, 100), index * index)
"""


@pytest.mark.parametrize(
    "body",
    [
        "iterator = iter(loader); next(iterator)",
        "next(iter(loader)); raise SystemExit(0)",
        "loader = DataLoader(Squares(), num_workers=1, persistent_workers=True); list(loader)",
    ],
)
def test_a_script_that_ends_in_an_epoch_just_ends(body: str, tmp_path: Path) -> None:
    start = "\nif __name__ == '__main__':\n    loader = DataLoader(Squares(), num_workers=2)\n    "
    code, _, err = run_trainer(tmp_path, HEAD + start + body + "\n")
    assert (code, err) == (0, "")


def test_an_error_in_the_loop_is_what_the_user_sees(tmp_path: Path) -> None:
    start = "\nif __name__ == '__main__':\n    loader = DataLoader(Squares(), num_workers=2)\n    "
    code, _, err = run_trainer(tmp_path, HEAD + start + "for batch in loader: batch.nothing()\n")
    assert code == 1
    assert "AttributeError" in err.splitlines()[-1]


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    body = "\nprint(len(list(DataLoader(Squares(), num_workers=1))))\n"
    assert run_trainer(tmp_path, HEAD + body) == (0, "24\n", "")
