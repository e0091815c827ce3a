"""The demo's pipeline: the example runs in processes of its own, which all end with the command."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from counterpoise.tools.cli import main
from counterpoise.tools.demo import pipeline
from counterpoise.tools.demo.pipeline import PROCESSES, example, run_ranks

FIGURES = {
    "loss_first",
    "loss_last",
    "hidden_planned",
    "hidden_measured",
    "step_simulated",
    "step_measured",
}
COMMAND = [sys.executable, "-c", "from counterpoise.tools.cli import main; main()", "demo"]
# A rank that says who it is in a folder, and waits where the folder has no file `end`.
RANK = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
rank = int(os.environ["RANK"])
(folder / f"part{rank}").write_text(str(os.getpid()))
(folder / f"part{rank}").rename(folder / f"pid{rank}")
while len(list(folder.glob("pid?"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
if rank == 0:
    print("all are here\\nsteps follow", flush=True)
if (folder / "wrong").exists() and rank == 2:
    raise ValueError("no such data")
while not (folder / "end").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path / "rank.py"


def all_ended(folder: Path) -> bool:
    """Return whether none of the ranks is there; all have been started."""
    found = [int(path.read_text()) for path in folder.glob("pid?")]
    assert len(found) == PROCESSES
    return not any(Path(f"/proc/{pid}").exists() for pid in found)


def test_the_first_ranks_lines_come_while_it_runs(program: Path) -> None:
    lines = run_ranks(program, [str(program.parent)])
    assert [next(lines), next(lines)] == ["all are here", "steps follow"]
    (program.parent / "end").touch()
    assert list(lines) == []
    assert all_ended(program.parent)


def test_all_ranks_end_with_the_reader(program: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with closing(run_ranks(program, [str(program.parent)])) as lines:
        assert next(lines) == "all are here"
    assert all_ended(program.parent)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_rank_that_fails_is_named_and_ends_the_others(program: Path) -> None:
    (program.parent / "wrong").touch()
    with pytest.raises(RuntimeError, match="process 2 of the pipeline failed: ValueError: no such"):
        list(run_ranks(program, [str(program.parent)]))
    assert all_ended(program.parent)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pipeline", "--width", "32"], "--width says nothing with --pipeline"),
        (["--pp", "2"], "--pp needs --pipeline"),
        (["--pipeline", "--pp", "3"], "'3' is not one of '2', '4'"),
        (["--pipeline", "--steps", "0"], "0 is not in the range"),
    ],
)
def test_options_of_the_other_form_are_refused(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *words])
    assert stopped.value.code == 2
    assert message in capfd.readouterr().err


def test_the_example_is_the_one_of_the_checkout(root: Path) -> None:
    assert example().resolve() == root / "examples" / "train_vlm.py"


STEPS = """
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
if os.environ["RANK"] == "0":
    print("step 0: fine", *words, flush=True)
    Path(words[words.index("--page") + 1]).write_text("drawn")
    figures = ("loss_first", "loss_last", "hidden_planned", "hidden_measured", "step_simulated")
    report = dict.fromkeys((*figures, "step_measured"), 0.25)
    change = {"step": 6, "gain_simulated": 0.125, "gain_measured": 0.0625}
    print(json.dumps(report | {"plan_changes": [change]}))
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_steps_summary_and_place_of_the_page_are_printed(
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.setattr(pipeline, "example", lambda: tmp_path / "steps.py")
    page = tmp_path / "page.html"
    main_words = ["demo", "--pipeline", "--steps", "3", "--pp", "2", "--out", str(page)]
    with pytest.raises(SystemExit) as ended:
        main([*main_words, *(["--json"] if as_json else []), "--data", "a*.tar"])
    assert ended.value.code == 0
    out, err = capfd.readouterr()
    steps, other = (err, out) if as_json else (out, err)
    assert f"fine --pp 2 --steps 3 --replan on --page {page} --json --data a*.tar" in steps
    assert str(page) in err
    assert page.read_text() == "drawn"
    if as_json:
        assert set(json.loads(other)) == FIGURES | {"plan_changes"}
    else:
        assert "0.250 s" in out
        assert "25%" in out
        assert "before step 6" in out
        assert "6.2% shorter" in out


@pytest.mark.slow
@pytest.mark.long
def test_the_report_has_all_figures_and_the_page_both_timelines(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = subprocess.run(
        [*COMMAND, "--pipeline", "--steps", "2", "--pp", "2", "--json", "--out", str(page)],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert set(report) >= FIGURES
    assert report["loss_last"] < report["loss_first"]
    assert 0 < report["step_simulated"] <= report["step_measured"]
    assert ">measured<" in page.read_text()
    assert "simulated with the times" in page.read_text()
    assert str(page) in done.stderr.replace("\n", "")


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_ends_it_with_one_word_and_leaves_no_process(tmp_path: Path) -> None:
    job = subprocess.Popen(
        [*COMMAND, "--pipeline", "--steps", "100000"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    for line in job.stdout:
        if line.split()[:1] == ["0"]:
            break
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    assert len(children) == PROCESSES
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 130
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{child}").exists() for child in children)
