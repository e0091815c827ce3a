"""`bench fields`: the parts' bytes add up to those of whole batches."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.loading import parts
from counterpoise.loader import DataLoader

SMALL = ["--tiles", "1", "--tokens", "8", "--side", "8", "--microbatches", "4", "--steps", "2"]


def in_process(data: Any, **given: Any) -> DataLoader[Any, Any]:
    """Return a loader without workers: to start those of all parts takes seconds."""
    alone = {"num_workers": 0, "persistent_workers": False, "multiprocessing_context": None}
    return DataLoader(data, **{**given, **alone})


def test_bytes_are_those_of_the_fields_that_a_rank_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "DataLoader", in_process)
    result = CliRunner().invoke(parts.command, [*SMALL, "--rounds", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])["parts"]
    size = {name: part["bytes"] for name, part in found.items()}
    # Of 4 microbatches of 2 samples: 8 tokens in int64, a tile of 8 x 8, an owner in int32.
    texts, pixels = 4 * 2 * 8 * 8, 4 * 2 * (3 * 8 * 8 + 4)
    assert size["first of 4 stages, encodes"] == 2 * texts + pixels // 4
    assert size["stage between, encodes"] == pixels // 4
    assert size["last of 4 stages, encodes"] == texts + pixels // 4
    assert size["units: first stage"] == 2 * texts
    assert size["units: last stage"] == texts
    assert size["units: one of 2 encoders"] == pixels // 2
    # Whole batches also have cumulative lengths and images per sample.
    assert size["whole batches"] == 3 * texts + pixels + 4 * (3 * 4 + 2 * 4)
    assert all(part["cpu_ms"]["median"] > 0 for part in found.values())
