"""The real samples that processors are tried on."""

from pathlib import Path

import pytest

from counterpoise.workers import TarDataset


@pytest.fixture(scope="module")
def real(data: Path) -> TarDataset:
    """The samples of the shards, raw."""
    return TarDataset(f"{data}/shards/*.tar")
