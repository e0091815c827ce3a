"""`schedule fill` as a user meets it."""

import json
from pathlib import Path

import pytest

from counterpoise.sched import check, parse_program
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.setup import dump_setup
from counterpoise.tools.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run `counterpoise` with these words; its status, output and errors."""

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def fill(run, *words: str) -> dict:
    job = () if {"--case", "--profile", "--model"} & set(words) else ("--case", "A")
    status, out, err = run("schedule", "fill", *job, *words, "--json")
    assert status == 0, err
    return json.loads(out.splitlines()[-1])


def test_fill_names_the_best_plan_and_those_refused(run) -> None:
    report = fill(run)
    assert report["best"]["step_seconds"] >= report["llm_only_seconds"]
    assert 0 < report["best"]["eff"] <= 1


def test_fill_prints_bubbles_and_plans(run) -> None:
    status, out, _ = run("schedule", "fill", "--case", "A", "--pp-enc", "2", "--tp-enc", "8")
    assert status == 0
    assert "reduce-scatter" in out
    assert "hidden" in out


@pytest.mark.parametrize("name", ["a.svg", "a.json", "a.txt"])
def test_fill_writes_what_the_suffix_says(run, tmp_path: Path, name: str) -> None:
    fill(
        run,
        "--pp-enc",
        "2",
        "--tp-enc",
        "8",
        "--parallel",
        "microbatches=4",
        "--out",
        str(tmp_path / name),
    )
    assert (tmp_path / name).stat().st_size > 1000


def test_fill_options_change_what_they_say(run) -> None:
    base = ("--pp-enc", "2", "--tp-enc", "8", "--parallel", "microbatches=4")
    chunked = fill(run, *base, "--tp-chunks", "4")
    assert chunked["llm_only_seconds"] < fill(run, *base)["llm_only_seconds"]
    whole = fill(run, *base, "--whole")
    assert {one["longest_piece_us"] for one in whole["plans"]} == {None}
    assert whole["encoder_collective_seconds"] > 0


def test_the_plan_is_chosen_with_the_encoders_collectives_and_few_copies(run) -> None:
    best = fill(run, "--case", "3072")["best"]
    assert (best["pp_enc"], best["tp_enc"], best["recompute"]) == (8, 8, False)
    assert best["step_seconds"] == pytest.approx(4.779, abs=0.001)
    named = fill(run, "--case", "3072", "--pp-enc", "1", "--tp-enc", "8")["best"]
    assert named["encoder_copies"] == pytest.approx(0.78, abs=0.01)
    assert named["step_seconds"] > 1.06 * best["step_seconds"]
    full = fill(run, "--case", "3072", "--pp-enc", "8", "--tp-enc", "8")["best"]
    assert full["step_seconds"] == best["step_seconds"]


def test_an_executable_plan_has_whole_layers_and_says_what_kernels_would_add(
    run, tmp_path: Path
) -> None:
    base = (
        "--case", "1536", "--pp-enc", "2", "--tp-enc", "8", "--executable",
    )  # fmt: skip
    report = fill(run, *base, "--out", str(tmp_path / "filled.txt"))
    assert report["best"]["eff"] < report["kernel_level"]["eff"]
    assert report["best"]["step_seconds"] >= report["kernel_level"]["step_seconds"]
    assert report["best"]["longest_piece_us"] is None
    check(parse_program((tmp_path / "filled.txt").read_text()))
    _, out, _ = run("schedule", "fill", *base)
    assert "for which a model's modules offer points, would hide" in out


def test_fill_reads_a_profile(run, tmp_path: Path) -> None:
    setup = case_setup("A")
    (tmp_path / "job.json").write_text(dump_setup(setup))
    found = fill(run, "--profile", str(tmp_path / "job.json"), "--pp-enc", "1", "--tp-enc", "8")
    assert found["best"]["pp_enc"] == 1


def test_fill_takes_a_model_on_a_device(run) -> None:
    words = ("--model", "internvit-6b+internlm2-20b", "--parallel", "tp=8,pp=4,dp=4,microbatches=8")
    report = fill(run, *words, "--pp-enc", "1", "--tp-enc", "8")
    assert report["best"]["pp_enc"] == 1
    assert report["best"]["encoder_copies"] == pytest.approx(0.68, abs=0.02)
    status, _, err = run("schedule", "fill", *words, "--case", "A")
    assert (status, "give one of --case, --profile and --model" in err) == (2, True)
    status, _, err = run("schedule", "fill", *words)
    assert status == 2
    assert "more than 12.0%; name the plan, or cut encoders further" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pp-enc", "3"), "3 ranks do not divide 4"),
        (("--out", "x.bmp"), "end it in .svg"),
        (("--profile", "nowhere.json"), "nowhere.json"),
        (("--parallel", "tp=8"), "with one of microbatches"),
    ],
)
def test_fill_says_what_is_wrong(run, words: tuple[str, ...], said: str) -> None:
    job = () if "--profile" in words else ("--case", "A")
    status, _, err = run("schedule", "fill", *job, *words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err
