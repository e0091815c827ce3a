"""The scripts of examples/hf train tiny models from folders, as they are written for real ones."""

import io
import math
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.examples import making
from tests.forking.ranks import torchrun
from tests.imports import ROOT

pytestmark = pytest.mark.slow

SCRIPTS = ROOT / "examples" / "hf"
FAMILIES = ("qwen2_5_vl", "llava")
GROUPED = ("sft_loop", "pack_text")  # those that torchrun starts
STEPS = 3
# What Trainer and the scripts print of a step, and what the loader says of balancing.
LOSS = re.compile(r"(?<!_)loss(?:'?: '?| )(\d+\.\d+)'?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module", autouse=True)
def _alone(folder: Path) -> Iterator[None]:
    """Nothing is asked of the network, nothing is kept beside the user's data."""
    with pytest.MonkeyPatch.context() as patch:
        making.without_videos(patch)
        patch.setattr("datasets.config.HF_DATASETS_CACHE", str(folder / "cache"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, str]:
    return {family: making.vision_language_model(family, folder / family) for family in FAMILIES}


@pytest.fixture(scope="module")
def rows(folder: Path) -> str:
    return making.tar_of(making.conversations(24), folder / "rows.tar")


def options(given: dict[str, Any]) -> list[str]:
    named = [f"--{option.replace('_', '-')}={value}" for option, value in given.items()]
    return ["--workers=0", f"--steps={STEPS}", *named]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script in this process; return the losses that it prints, and all that it prints."""

    def run_script(name: str, **given: Any) -> tuple[list[float], str]:
        if name in GROUPED:
            # A group of one: its store may take any port.
            group = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
            for word, value in group.items():
                monkeypatch.setenv(word, str(value))
        monkeypatch.setattr(sys, "argv", [name, *options(given)])
        monkeypatch.chdir(folder)
        with redirect_stdout(io.StringIO()) as told:
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        return losses_in(told.getvalue()), told.getvalue()

    return run_script


@pytest.fixture
def run_two(folder: Path) -> Any:
    """Run a script by torchrun, on two ranks."""

    def run_script(name: str, **given: Any) -> tuple[list[float], str]:
        script = str(SCRIPTS / f"{name}.py")
        done = torchrun(
            ["--standalone", "--nproc-per-node", "2", script, *options(given)],
            cwd=folder,
            imported=("transformers.trainer", "datasets"),
        )
        assert done.returncode == 0, done.stderr
        return losses_in(done.stdout), done.stdout

    return run_script


def losses_in(told: str) -> list[float]:
    return [float(each) for each in LOSS.findall(told)]


def assert_trained(losses: list[float]) -> None:
    """Check that every step has a loss, near that of a model which has learned nothing."""
    assert len(losses) == STEPS
    assert all(abs(loss - math.log(380)) < 0.5 for loss in losses)  # the words of the tokenizer


@pytest.mark.long
def test_two_ranks_pack_a_stream_each(run_two: Any, folder: Path) -> None:
    lines = making.write_lines(100, folder / "shared.jsonl")
    model = making.llama(folder / "two")
    losses, told = run_two("pack_text", model=model, data=lines, tokens=400, accumulate=2)
    assert_trained(losses)
    held = re.findall(r"tokens of ranks \[(\d+), (\d+)\]", told)
    assert all(0.9 * 800 <= int(tokens) <= 800 for step in held for tokens in step)


@pytest.mark.long
def test_two_ranks_share_the_conversations(run_two: Any, models: dict[str, str], rows: str) -> None:
    # so small packs that some have no image: then the encoder has no gradients on one rank
    losses, told = run_two(
        "sft_loop", model=models["llava"], data=rows, tokens=150, samples_per_step=8
    )
    assert_trained(losses)
    assert told.count("tokens of ranks [") == STEPS


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loop_of_ones_own_trains(
    run: Any, models: dict[str, str], rows: str, family: str
) -> None:
    # so small packs that some have no image
    losses, told = run("sft_loop", model=models[family], data=rows, tokens=150, samples_per_step=8)
    assert_trained(losses)
    assert told.count("tokens of ranks [") == STEPS


@pytest.mark.parametrize("family", FAMILIES)
def test_trainer_trains(
    run: Any, models: dict[str, str], rows: str, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "counterpoise"):
        losses, _ = run("sft_trainer", model=models[family], data=rows, batch_size=2, accumulate=4)
    assert_trained(losses)
    assert 'balance="auto": tokens' in caplog.text


@pytest.mark.parametrize("family", FAMILIES)
def test_trl_trains(run: Any, folder: Path, models: dict[str, str], family: str) -> None:
    data = making.write_parquet(making.conversations(24), folder / "rows.parquet")
    losses, _ = run("sft_trl", model=models[family], data=data, batch_size=2, accumulate=4)
    assert_trained(losses)


def test_texts_are_packed_as_they_come(run: Any, folder: Path) -> None:
    lines = making.write_lines(100, folder / "texts.jsonl")
    losses, told = run(
        "pack_text", model=making.llama(folder / "llama"), data=lines, tokens=600, accumulate=2
    )
    assert_trained(losses)
    held = [int(each) for each in re.findall(r"tokens of ranks \[(\d+)\]", told)]
    assert min(held) >= 0.9 * 2 * 600


def test_speech_is_budgeted_in_mel_frames(run: Any, folder: Path) -> None:
    data = making.sounds(32, folder / "sounds.tar")
    model = making.recogniser(folder / "parakeet")
    losses, told = run("speech", model=model, data=data, frames=600, samples_per_step=8)
    assert len(losses) == STEPS
    assert told.count("% padding") == STEPS


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_real_conversations_train(
    run: Any, models: dict[str, str], data: Path, family: str
) -> None:
    shards = f"{data}/shards/mixed-00000.tar"
    losses, _ = run("sft_loop", model=models[family], data=shards, samples_per_step=16)
    assert_trained(losses)


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_is_short(script: Path) -> None:
    assert len(script.read_text().splitlines()) <= 80
