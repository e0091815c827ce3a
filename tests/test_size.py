"""What may not grow: lines of the product, and of what loops import (`make size`)."""

import subprocess
import sys

import pytest

from tests import files_entered, size
from tests.imports import ROOT, modules


def test_the_product_keeps_its_limits() -> None:
    for name, found in size.static_sizes().items():
        assert found.lines <= size.LIMITS[name], name


@pytest.mark.parametrize("loop", [size.PLAIN, size.BALANCED])
def test_what_a_loop_imports_keeps_its_limit(loop: str) -> None:
    trainer, _ = size.imported_by(loop)
    assert "loader.dataloader" in trainer
    assert size.size_of(modules()[name] for name in trainer).lines <= size.LIMITS[loop]


def test_a_batch_of_a_local_balanced_loop_goes_through_few_files() -> None:
    # A process of its own: what other tests left is collected at any time, by functions of ours.
    command = [sys.executable, "-P", "-m", "tests.files_entered"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    *entered, _ = done.stdout.splitlines()
    assert "loader.dataloader" in entered
    assert len(entered) <= files_entered.LIMIT
