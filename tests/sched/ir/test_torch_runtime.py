"""Torch's own runtime trains with our CSV, on gloo: its gradients are those of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from counterpoise.sched import schedule
from counterpoise.sched.ir.torch_csv import write_csv
from tests.forking.popen import Popen

pytestmark = pytest.mark.slow

pytest.importorskip("torch.distributed.pipelining.schedules")
RANKS = 4
# DualPipeV needs as many microbatches as stages, interleaved a multiple of the ranks.
SCHEDULES = {
    "1f1b": 6, "zb-h1": 6, "zb-h2": 6, "zbv": 6, "v-half": 6, "interleaved": 8, "dualpipev": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """By schedule: the largest relative error of a gradient on any rank; one pool runs all."""
    folder = tmp_path_factory.mktemp("csv")
    cases: list[dict[str, object]] = []
    for name, microbatches in SCHEDULES.items():
        program = schedule(name, ranks=RANKS, microbatches=microbatches)
        (folder / name).write_text(write_csv(program))
        sizes = {"placement": program.placement, "microbatches": microbatches}
        cases.append({"file": name, **sizes})
    (folder / "cases.json").write_text(json.dumps(cases))
    script = str(Path(__file__).with_name("torch_runtime_rank.py"))
    words = [sys.executable, script]
    pool = [
        Popen([*words, str(r), str(RANKS), str(folder)], stderr=subprocess.PIPE, text=True)
        for r in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=180)[1] for process in pool]
    finally:
        for process in pool:
            process.kill()
    assert [process.returncode for process in pool] == [0] * RANKS, "\n".join(said)
    parts = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(RANKS)]
    return {name: max(part[name] for part in parts) for name in SCHEDULES}


@pytest.mark.parametrize("name", SCHEDULES)
def test_torchs_gradients_are_those_of_one_process(errors: dict[str, float], name: str) -> None:
    assert errors[name] < 1e-5
