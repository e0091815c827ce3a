"""What every test shares: a clean import path, the real data when present, fixed randomness."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# ./sched would hide the standard library's module of the same name.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT]

settings.register_profile("counterpoise", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("counterpoise")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("COUNTERPOISE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("no real data here (set COUNTERPOISE_DATA)")
    return folder
