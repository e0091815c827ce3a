"""`bench overhead`: figures follow from the passes, and a pass counts all processes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.loading import overhead
from benchmarks.loading.overhead import OverheadCell, OverheadPass, OwnWork


def test_figures_are_medians_and_loading_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(
        wanted: Sequence[OverheadCell], rounds: int
    ) -> Iterator[tuple[OverheadCell, str, overhead.Found]]:
        for cell in wanted:
            for number in range(rounds):
                for more, name in enumerate(overhead.COSTS):
                    yield cell, name, OverheadPass(10.0 + number, 20.0 + more, 30.0, 1000.0)
                yield cell, "alone", OwnWork(5.0 + 2 * number, 1.0)

    monkeypatch.setattr(overhead, "measure", measure)
    asked = ["--microbatch", "16", "--rounds", "3", "--json"]
    result = CliRunner().invoke(overhead.command, asked)
    assert result.exit_code == 0, result.output
    (cell,) = json.loads(result.stdout.splitlines()[-1])["cells"]
    assert (cell["microbatch"], cell["loading_us"]["median"], cell["copy_us"]["median"]) == (
        16,
        7,
        1,
    )
    assert cell["known"]["trainer_us"] == {"median": 11.0, "low": 10.0, "high": 12.0}
    assert cell["known"]["all_us"] == {"median": 61.0, "low": 60.0, "high": 62.0}
    assert cell["known"]["beside_us"] == {"median": 54.0, "low": 53.0, "high": 55.0}
    assert cell["measured"]["beside_us"]["median"] == 55.0


def test_an_epoch_has_two_steps_at_least() -> None:
    asked = ["--microbatch", "64", "--samples", "511"]
    result = CliRunner().invoke(overhead.command, asked)
    assert result.exit_code == 2
    assert "--samples" in result.output


@pytest.mark.parametrize("with_file", [False, True])
def test_samples_differ_as_their_costs_say(with_file: bool, tmp_path: Path) -> None:
    costs = f"{tmp_path}/costs.npz" if with_file else ""
    if costs:
        np.savez(costs, tiles=np.array([0, 3, 1]), tokens=np.array([7, 5, 9]))
    samples = overhead.SmallSamples(OverheadCell(16, 3, 1, costs))
    assert len(samples) == 3
    for index in range(3):
        sample = samples[index]
        assert len(sample["input_ids"]) == len(sample["labels"]) == samples.tokens[index]
        assert (
            len(sample["pixel_values"]) == sample["tiles_per_image"].sum() == samples.tiles[index]
        )
    assert len(set(samples.tokens.tolist())) == 3
    assert overhead.own_work(samples).loading > 0


@pytest.mark.long
@pytest.mark.parametrize("costs", overhead.COSTS)
def test_a_pass_counts_the_time_of_every_process(costs: str) -> None:
    loader = overhead.loader_of(OverheadCell(16, 512, 1), costs)
    found = [overhead.one_pass(loader) for _ in range(2)][-1]
    loader.close()
    assert min(found.trainer, found.balancer, found.workers, found.rate) > 0
