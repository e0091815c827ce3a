"""verl's SFT trainer on two ranks: its own loader, and ours in a subclass."""

import shutil
from pathlib import Path

import pandas
import pytest

from tests.programs import harness, tiny_model, trainers

HERE = Path(__file__).parent
PACKAGE = "tests.programs.verl_sft"
VARIABLES = {
    "VERL_USE_EXTERNAL_MODULES": f"{PACKAGE}.stand_in",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
}
SAMPLES, BATCH = 160, 16
OVERRIDES = [
    "model.path=model", "model.use_remove_padding=False", "data.train_files=train.parquet",
    "+model.override_config.attn_implementation=sdpa", f"data.train_batch_size={BATCH}",
    "data.val_files=eval.parquet", "data.max_length=2048", "data.max_token_len_per_gpu=2048",
    "data.num_workers=0", "engine.strategy=fsdp2", "engine.use_torch_compile=False",
    "engine.model_dtype=fp32", "optim.lr=1e-3", "trainer.device=cpu", "trainer.total_epochs=2",
    "trainer.logger=[console]", "trainer.save_freq=5", "trainer.test_freq=10",
    "+engine.mixed_precision={param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verl_sft")
    tiny_model.write_model(folder / "model")
    for name, count, seed in (("train", SAMPLES, 1), ("eval", 16, 2)):
        rows = tiny_model.conversations(count, seed)
        pandas.DataFrame({"messages": rows}).to_parquet(folder / f"{name}.parquet")
    shutil.copy(HERE / "trial.py", folder)
    return folder


def train(folder: Path, script: str, name: str, *overrides: str) -> harness.Run:
    command = [str(HERE / script), *OVERRIDES, *overrides]
    return harness.run_program(
        command, folder, name, before=[f"{PACKAGE}.observe"], variables=VARIABLES
    )


@pytest.fixture(scope="module")
def plain(folder: Path) -> harness.Run:
    return train(folder, "plain.py", "plain", "trainer.default_local_dir=plain")


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    return train(folder, "balanced.py", "ours", "trainer.default_local_dir=ours")


def test_the_training_is_the_same(plain: harness.Run, ours: harness.Run) -> None:
    harness.print_comparison("verl SFT", plain, ours, waits="step")
    assert len(plain.steps) == 20
    harness.check_same_steps(plain, ours)
    harness.check_first_step(plain, ours)
    harness.check_epochs(ours, SAMPLES)
    assert ours.step_samples() == plain.step_samples()
    harness.check_evaluations(plain, ours)


def test_ranks_wait_less_and_as_long_as_the_plan_says(
    plain: harness.Run, ours: harness.Run
) -> None:
    assert ours.waiting(harness.tokens) < 0.03 < plain.waiting(harness.tokens)
    harness.check_forecast(ours, harness.tokens)


def test_a_checkpoint_in_mid_epoch_goes_on_exactly(folder: Path, ours: harness.Run) -> None:
    resumed = train(
        folder, "balanced.py", "resumed", "trainer.default_local_dir=resumed",
        "trainer.resume_mode=resume_path", "trainer.resume_from_path=ours/global_step_5",
    )  # fmt: skip
    harness.check_resumed(ours, resumed, 5)
    losses = [line["loss"] for line in ours.steps[5:]]
    assert [line["loss"] for line in resumed.steps] == pytest.approx(losses, rel=1e-4)


def test_the_trial_tells_what_is_gained(folder: Path, plain: harness.Run) -> None:
    trainers.check_trial(trainers.try_loader(folder, SAMPLES, accumulate=1), plain, harness.tokens)
