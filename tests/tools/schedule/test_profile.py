"""`counterpoise profile`: measured steps in, a cost profile and its residuals out."""

import json
from pathlib import Path

import pytest

from counterpoise.sched import CostFunction, load_profile, profile_costs, schedule, simulate
from counterpoise.sched.simulation.cost_profile import CostProfile
from counterpoise.sched.simulation.measured import MeasuredStep, dump_step
from counterpoise.tools.cli import main

TRUE = CostProfile(
    (0, 1),
    {
        "F": (CostFunction(500, {"tokens": 2000}),) * 2,
        "B": (CostFunction(900, {"tokens": 4000}),) * 2,
    },
)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["profile", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def step(folder: Path, *tokens: int) -> str:
    held = tuple({"tokens": n} for n in tokens)
    program = schedule("1f1b", ranks=2, microbatches=len(held))
    file = folder / f"step{sum(tokens)}.json"
    file.write_text(dump_step(MeasuredStep(simulate(program, profile_costs(TRUE, held)), held)))
    return str(file)


def test_the_profile_of_measured_steps(capsys, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    steps = (step(tmp_path, 100, 700, 400), step(tmp_path, 900, 50, 60))
    status, said, _ = run(capsys, *steps, "--out", str(out), "--p2p-ns", "7", "--json")
    assert status == 0
    found = load_profile(out.read_text())
    assert found.passes == TRUE.passes
    assert found.p2p_ns == 7
    found_f = json.loads(said)["residuals"]["F"][1]
    assert found_f["mean"] == pytest.approx(500 + 2 * 2210 / 6)
    assert (found_f["samples"], found_f["rms"], found_f["worst"]) == (6, 0, 0)


def test_the_table_has_a_line_for_each_kind_and_stage(capsys, tmp_path: Path) -> None:
    _, said, _ = run(capsys, step(tmp_path, 100, 700))
    assert len(said.splitlines()) == 1 + 4
    assert "rms error" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "step.json: "),
        (
            '{"placement": [0], "ranks": [[["0F0", 0, 9]]]}',
            "does not say what its microbatches held",
        ),
    ],
)
def test_a_bad_step_is_one_clear_line(capsys, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "step.json"
    file.write_text(text)
    status, out, err = run(capsys, str(file))
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
