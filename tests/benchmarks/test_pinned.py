"""`bench pinned` where there is no GPU: the loops run, and nothing is pinned."""

import pytest
from click.testing import CliRunner

from benchmarks.loading.pinning.command import (
    LOADERS,
    TrainingLoop,
    command,
    loader_of,
    one_pass,
)
from benchmarks.loading.pinning.step_models import MODELS, make_model


@pytest.mark.filterwarnings("ignore:.*pinned")
@pytest.mark.parametrize("name", LOADERS)
def test_a_loop_on_a_cpu_finds_no_wrong_image(name: str) -> None:
    steps = TrainingLoop("vit", "cpu", batches=3, batch_size=2, side=112, workers=1)
    loader = loader_of(name, steps)
    passed = one_pass(loader, make_model("vit", "cpu", 112, 251), "cpu")
    assert passed.wrong == 0
    assert passed.rate > 0
    loader._iterator._shutdown_workers()


def test_images_that_do_not_have_their_label_are_wrong() -> None:
    import torch

    batches = [(torch.full((2, 3, 16, 16), 7, dtype=torch.uint8), torch.tensor([7, 8]))]
    assert one_pass(batches, lambda *_: None, "cpu").wrong == 1


@pytest.mark.parametrize("name", MODELS)
def test_a_step_takes_uint8_images(name: str) -> None:
    import torch

    step = make_model(name, "cpu", 32, 10)
    step(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([1, 2]))


def test_without_a_gpu_it_says_what_to_do() -> None:
    result = CliRunner().invoke(command, ["--side", "16"])
    assert "--device cpu" in str(result.exception)
