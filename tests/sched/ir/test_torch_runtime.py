"""Torch's own runtime trains with our CSV, on gloo: its gradients are those of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.pipelining import schedules

from counterpoise.sched import lower, schedule
from counterpoise.sched.ir.torch_csv import write_csv
from tests.forking.popen import Popen

pytestmark = pytest.mark.slow

pytest.importorskip("torch.distributed.pipelining.schedules")
RANKS = 4
# DualPipeV needs as many microbatches as stages, interleaved a multiple of the ranks.
SCHEDULES = {
    "1f1b": 6,
    "zb-h1": 6,
    "zb-h2": 6,
    "zbv": 6,
    "v-half": 6,
    "interleaved": 8,
    "dualpipev": 8,
}
FORMATS = ("compute_only", "compute_comms")


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """By case: the largest relative error of a gradient on any rank; one pool runs all cases."""
    folder = tmp_path_factory.mktemp("csv")
    cases: list[dict[str, object]] = []
    files: list[str] = []
    for name, microbatches in SCHEDULES.items():
        program = schedule(name, ranks=RANKS, microbatches=microbatches)
        for form in FORMATS:
            file = f"{name}.{form}.csv"
            made = program if form == "compute_only" else lower(program, ahead=None)
            (folder / file).write_text(write_csv(made, waits=hasattr(schedules, "WAIT_SEND_F")))
            case = {"file": file, "format": form, "placement": program.placement}
            cases.append(case | {"microbatches": microbatches})
            files.append(file)
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
    return {file: max(part[file] for part in parts) for file in files}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("form", FORMATS)
def test_torchs_gradients_are_those_of_one_process(
    errors: dict[str, float], name: str, form: str
) -> None:
    assert errors[f"{name}.{form}.csv"] < 1e-5
