"""LLaMA-Factory's v1 trainer with our loader: make test-frameworks PROGRAM=llamafactory."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.programs.trainers import (
    SAVED,
    ResumedChecks,
    Runs,
    count_lines,
    run_watched,
    write_data,
)

PROGRAM = "llamafactory"
OURS = ("torchrun", "--nproc-per-node", "2", "train_v1.py", "v1.yaml")


def make_message(message: dict[str, str]) -> dict[str, Any]:
    """Return a message as v1 has them: a loss on what the assistant says."""
    content = [{"type": "text", "value": message["content"]}]
    weight = float(message["role"] == "assistant")
    return {"role": message["role"], "content": content, "loss_weight": weight}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_data(tmp_path_factory.mktemp("v1") / "data")
    rows = map(json.loads, (folder / "train.jsonl").read_text().splitlines())
    lines = [{"messages": [make_message(message) for message in row["messages"]]} for row in rows]
    (folder / "v1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def runs(data: Path) -> Runs:
    plain = run_watched(
        ("llamafactory-cli", "sft", "v1.yaml"), data, "plain", PROGRAM,
        USE_V1="1", FORCE_TORCHRUN="1", NPROC_PER_NODE="2",
    )  # fmt: skip
    ours = run_watched(OURS, data, "ours", PROGRAM)
    saved = data.parent / "ours" / "out" / f"checkpoint-{SAVED}"
    again = (*OURS, f"resume_from_checkpoint={saved}")
    return Runs(plain, ours, run_watched(again, data, "resumed", PROGRAM, begun="ours"))


class TestV1(ResumedChecks):
    """It has no evaluation."""

    name = "LLaMA-Factory 0.9.5, v1"
    evaluates = False
    deals_batches = False  # but every second sample of an order

    def test_it_takes_thirty_lines(self) -> None:
        assert count_lines("llamafactory/train_v1.py") <= 30
