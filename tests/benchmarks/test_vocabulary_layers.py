"""`bench vocabulary`: its contenders compute the same, and its report has the promised shape."""

import json

import pytest
import torch
from click.testing import CliRunner

from benchmarks.vocabulary.layers import LayerCase, command, measure
from benchmarks.vocabulary.losses import (
    chunked,
    cross_entropy,
    make_inputs,
    one_shard,
)
from counterpoise.sched.runtime.vocabulary import logits

CPU = torch.device("cpu")
SHARDS = [f"shard {a} {k}" for a in ("alg1", "alg2") for k in ("logits", "nothing")]


@pytest.mark.parametrize("algorithm", ["alg1", "alg2"])
def test_the_contenders_compute_the_same_gradients(algorithm) -> None:
    inputs = make_inputs(50, 8, 16, CPU, torch.float32)
    wanted = cross_entropy(inputs)
    weight = inputs.layer.weight.grad
    torch.testing.assert_close(chunked(inputs), wanted)
    torch.testing.assert_close(inputs.layer.weight.grad, weight)
    torch.testing.assert_close(one_shard(inputs, algorithm, "nothing", 1)(), wanted)


def test_logits_show_in_the_memory_of_those_who_hold_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Pieces of a tenth of a shard's logits, as large shards have.
    monkeypatch.setattr(logits.token_pieces, "__defaults__", (2**17,))
    monkeypatch.setattr(logits.column_pieces, "__defaults__", (2**17,))
    report = measure(LayerCase(2**13, 8, 320, 2, torch.float32, CPU), rounds=1)
    whole = report["logits_bytes"]
    assert whole == 2**13 * 320 * 4
    assert report["cross_entropy"]["peak_bytes"] >= 2 * whole
    for algorithm in ("alg1", "alg2"):
        kept, nothing = (
            report[f"shard {algorithm} {keep}"]["peak_bytes"] for keep in ("logits", "nothing")
        )
        assert kept >= whole / 2
        assert nothing <= whole / 4


def test_the_report_has_ratios_with_their_range() -> None:
    arguments = "--words 64 --hidden 8 --tokens 16 --dtype fp32 --device cpu --rounds 3 --json"
    found = CliRunner().invoke(command, arguments.split(), catch_exceptions=False)
    report = json.loads(found.stdout.splitlines()[-1])
    cell = report["words"]["64"]
    assert set(cell) == {"logits_bytes", "cross_entropy", "chunked", *SHARDS}
    assert cell["cross_entropy"]["time_ratio"] == [1.0, 1.0, 1.0]
    for name in SHARDS:
        median, least, most = cell[name]["work_ratio"]
        assert 0 < least <= median <= most
