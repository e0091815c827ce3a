"""`counterpoise profile`: measured steps in, a cost profile and its residuals out."""

import json
from pathlib import Path

import pytest

from counterpoise.sched import CostFunction, load_profile, profile_costs, schedule, simulate
from counterpoise.sched.runtime.execution.drive import write_step
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
    status, said, _ = run(capsys, *steps, "--out", str(out), "--json")
    assert status == 0
    found = load_profile(out.read_text())
    assert found.passes == TRUE.passes
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


def measured(folder: Path) -> None:
    """Write five steps, of which the first two are slower, under the names that a Pipeline uses."""
    held = ({"tokens": 100}, {"tokens": 700})
    for number in range(5):
        slow = 3 if number < 2 else 1
        passes = {
            name: tuple(CostFunction(f.fixed * slow, f.per_thousand) for f in rows)
            for name, rows in TRUE.passes.items()
        }
        program = schedule("1f1b", ranks=2, microbatches=2)
        timeline = simulate(program, profile_costs(CostProfile((0, 1), passes), held))
        write_step(folder, 8 + number, timeline, held)


def test_of_a_folder_the_first_steps_are_left_out(capsys, tmp_path: Path) -> None:
    measured(tmp_path / "steps")
    out = tmp_path / "profile.json"
    assert run(capsys, str(tmp_path / "steps"), "--out", str(out))[0] == 0
    assert load_profile(out.read_text()).passes == TRUE.passes
    status, _, err = run(capsys, str(tmp_path / "steps"), "--skip", "5")
    assert status == 2
    assert "no more steps than --skip 5 leaves out" in err
