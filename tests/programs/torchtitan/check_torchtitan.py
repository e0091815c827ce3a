"""torchtitan's trainer on two ranks, with our loader by --override.imports."""

import json
import shutil
from pathlib import Path

import pytest

from tests.programs import harness, tiny_model

HERE = Path(__file__).parent
PACKAGE = "tests.programs.torchtitan"
BEFORE = [f"{PACKAGE}.stand_in", f"{PACKAGE}.observe"]
SAMPLES, STEP, LENGTH = 200, 20, 512
ARGUMENTS = [
    "--module", "llama3", "--config", "sft_debugmodel", "--hf_assets_path", "model",
    "--training.seq_len", str(LENGTH), "--training.local_batch_size", "1",
    "--training.global_batch_size", "4", "--training.disable_cuda_graphs",
    "--parallelism.spmd_backend", "partial_dtensor", "--training.steps", "20",
]  # fmt: skip
VARIABLES = {"STEPS_OF_EPOCH": str(SAMPLES // STEP)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchtitan")
    model = folder / "model"
    model.mkdir()
    tiny_model.train_tokenizer().save(str(model / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": tiny_model.CHATML}
    (model / "tokenizer_config.json").write_text(json.dumps(names))
    data = folder / "tests" / "assets" / "sft_test" / "data.json"  # where the config has it
    data.parent.mkdir(parents=True)
    rows = tiny_model.conversations(SAMPLES, 1)
    texts = [{"question": row[0]["content"], "answer": row[1]["content"]} for row in rows]
    data.write_text("\n".join(map(json.dumps, texts)) + "\n")
    shutil.copy(HERE / "my_data.py", folder)
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    adapter = "counterpoise.loader.adapters.torchtitan.dataloader"
    override = ["--override.imports", f'{adapter}={{"loader": "my_data:make_loader"}}']
    command = ["torchtitan.train", *ARGUMENTS, "--dump_folder", "ours", *override]
    return harness.run_program(command, folder, "ours", before=BEFORE, variables=VARIABLES)


def test_two_epochs_have_each_sample_once_in_rows_of_one_length(ours: harness.Run) -> None:
    assert [line["step"] for line in ours.steps] == list(range(20))
    assert {batch["slots"] for batch in ours.batches} == {LENGTH}
    harness.check_epochs(ours, SAMPLES)
    assert ours.steps[-1]["loss"] < ours.steps[0]["loss"] / 2


def test_ranks_wait_less_than_in_random_order_and_as_the_plan_says(ours: harness.Run) -> None:
    print(f"\ntorchtitan: padding {ours.padding():.1%}, waiting {ours.plans[-1]['waiting']}")
    harness.check_forecast(ours, harness.tokens)
    assert ours.waiting(harness.tokens) < ours.plans[-1]["waiting"]["random"] / 10
