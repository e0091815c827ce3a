"""A vision-language model in LLaMA-Factory: make test-frameworks PROGRAM=llamafactory.

It switches the loss by tokens off where there is a processor, so counts are equal. The collator
pads the text, and pixel values add up.
"""

from pathlib import Path

import pytest

import tests.programs.watched.sitecustomize  # noqa: F401  torchvision's stand-in
from tests.programs.llamafactory.tiny_vl import write_vl_data
from tests.programs.trainers import SAMPLES, Runs, TrainerChecks, run_watched

PROGRAM = "llamafactory"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vl") / "data"
    folder.mkdir()
    write_vl_data(folder, SAMPLES)
    return folder


@pytest.fixture(scope="module")
def runs(data: Path) -> Runs:
    plain = run_watched(
        ("llamafactory-cli", "train", "vl.yaml"), data, "plain", PROGRAM,
        FORCE_TORCHRUN="1", NPROC_PER_NODE="2",
    )  # fmt: skip
    command = ("torchrun", "--nproc-per-node", "2", "train.py", "vl.yaml")
    return Runs(plain, run_watched(command, data, "ours", PROGRAM))


class TestVisionLanguage(TrainerChecks):
    name = "LLaMA-Factory 0.9.5, Qwen2.5-VL"
    losses_agree = False

    def test_texts_are_padded_less(self, runs: Runs) -> None:
        assert runs.ours.padding() < runs.plain.padding()
