"""Lightning on cuts of speech, two ranks: lhotse's sampler, and a balanced loader of the cuts."""

from pathlib import Path

import lightning
import pytest
from lhotse import CutSet

from tests.programs import harness
from tests.programs.lhotse import speech
from tests.programs.lightning_lhotse import train as program

HERE = Path(__file__).parent
CUTS = 130


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lightning_lhotse")
    speech.write_cuts(folder, CUTS, seed=1)
    (folder / "eval").mkdir()
    speech.write_cuts(folder / "eval", 30, seed=2)
    return folder


def train(folder: Path, script: str, name: str, *checkpoint: str) -> harness.Run:
    run_folder = folder / name
    run_folder.mkdir()
    for path in ("cuts.jsonl", "eval"):
        (run_folder / path).symlink_to(folder / path)
    command = [str(HERE / script), *checkpoint]
    return harness.run_program(
        command, run_folder, name, before=["tests.programs.lightning_lhotse.observe"]
    )


@pytest.fixture(scope="module")
def plain(folder: Path) -> harness.Run:
    return train(folder, "train.py", "plain")


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    return train(folder, "balanced.py", "ours")


def test_steps_rates_and_evaluations_are_the_same(plain: harness.Run, ours: harness.Run) -> None:
    harness.print_comparison("Lightning + lhotse", plain, ours)
    assert len(plain.steps) == 20
    harness.check_same_steps(plain, ours)
    harness.check_evaluations(plain, ours)


def test_an_epoch_has_each_cut_once_in_fewer_steps(plain: harness.Run, ours: harness.Run) -> None:
    harness.check_epochs(ours, CUTS)
    steps = [
        len({batch["step"] for batch in run.batches if batch["epoch"] == 0})
        for run in (plain, ours)
    ]
    print(f"Lightning + lhotse: steps of an epoch {steps[0]} -> {steps[1]}")
    assert steps[1] < steps[0]


def test_the_first_step_is_that_of_its_cuts_in_one_batch(folder: Path, ours: harness.Run) -> None:
    """lhotse's own first step has other cuts, and the mean of each rank's mean."""
    cuts = CutSet.from_jsonl(folder / "cuts.jsonl").subset(cut_ids=ours.step_samples()[0])
    lightning.seed_everything(0)
    model = program.SpeechModel()
    loss = model.measure_loss(program.speech[cuts])
    loss.backward()
    assert ours.steps[0]["loss"] == pytest.approx(loss.item(), rel=1e-4)
    harness.check_gradients(ours, {name: it.grad for name, it in model.named_parameters()})


def test_ranks_wait_less_and_as_long_as_the_plan_says(
    plain: harness.Run, ours: harness.Run
) -> None:
    assert ours.waiting() < plain.waiting()
    assert ours.padding() < plain.padding()
    harness.check_forecast(ours, harness.slots)


def test_a_checkpoint_in_mid_epoch_goes_on_exactly(folder: Path, ours: harness.Run) -> None:
    checkpoint = folder / "ours" / "checkpoints" / "step=15.ckpt"
    resumed = train(folder, "balanced.py", "resumed", str(checkpoint))
    harness.check_resumed(ours, resumed, 15)
    losses = [line["loss"] for line in ours.steps[15:]]
    assert [line["loss"] for line in resumed.steps] == pytest.approx(losses, rel=1e-5)
