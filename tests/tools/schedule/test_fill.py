"""`schedule fill` as a user meets it."""

import html
import json
import re
from pathlib import Path

import pytest

from counterpoise.sched import check, parse_program
from counterpoise.sched.bubble_filling.encoder_plans import host_step
from counterpoise.sched.bubble_filling.gaps import COMMUNICATING, COMPUTING, FREE
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
    assert report["best"]["eff"] <= report["best"]["upper_bound"] <= 1


def test_fill_prints_bubbles_and_plans(run) -> None:
    status, out, _ = run("schedule", "fill", "--case", "A", "--pp-enc", "2", "--tp-enc", "8")
    assert status == 0
    assert "reduce-scatter" in out
    assert "hidden" in out


@pytest.mark.parametrize("name", ["a.svg", "a.html", "a.json", "a.txt"])
def test_fill_writes_what_the_suffix_says(run, tmp_path: Path, name: str) -> None:
    fill(
        run, "--pp-enc", "2", "--tp-enc", "8", "--microbatches", "4", "--out", str(tmp_path / name)
    )
    assert (tmp_path / name).stat().st_size > 1000


def test_fill_options_change_what_they_say(run) -> None:
    base = ("--pp-enc", "2", "--tp-enc", "8", "--microbatches", "4")
    chunked = fill(run, *base, "--tp-chunks", "4")
    assert chunked["llm_only_seconds"] < fill(run, *base)["llm_only_seconds"]
    whole = fill(run, *base, "--whole")
    assert {one["longest_piece_us"] for one in whole["plans"]} == {None}
    frozen = fill(run, *base, "--frozen")
    assert frozen["best"]["exposed_seconds"][1] == 0
    costs = [word for cost in ("3000", "500", "400", "100") for word in ("--cost", cost)]
    assert fill(run, *base, *costs, "--fixed")["order"] == [0, 1, 2, 3]
    fill(run, *base, "--guard", "10", "--slack", "2.5")
    words = ("--whole", "--tp-enc", "1", "--warmup", "megatron", "--encoder-memory", "9")
    tight = fill(run, "--guard", "10", *words)
    assert tight["refused"]
    assert tight["plans"]
    free = fill(run, *base, "--whole", "--no-encoder-collectives")
    assert free["encoder_collective_seconds"] == 0 < whole["encoder_collective_seconds"]
    assert free["llm_only_seconds"] == whole["llm_only_seconds"]
    assert free["best"]["step_seconds"] < whole["best"]["step_seconds"]


def test_the_plan_is_chosen_with_the_encoders_collectives_and_few_copies(run) -> None:
    best = fill(run, "--case", "3072")["best"]
    assert (best["pp_enc"], best["tp_enc"], best["recompute"]) == (8, 8, False)
    assert best["step_seconds"] == pytest.approx(4.779, abs=0.001)
    words = ("--case", "3072", "--no-encoder-collectives", "--encoder-memory", "1")
    alone = fill(run, *words)["best"]
    assert alone["encoder_copies"] == pytest.approx(0.78, abs=0.01)
    plan = ("--pp-enc", str(alone["pp_enc"]), "--tp-enc", str(alone["tp_enc"]))
    assert fill(run, "--case", "3072", *plan)["best"]["step_seconds"] > 1.06 * best["step_seconds"]
    full = fill(run, "--case", "3072", "--pp-enc", "8", "--tp-enc", "8")["best"]
    assert full["step_seconds"] == best["step_seconds"]


def test_each_encoder_has_a_plan_of_its_own_where_that_is_better(run) -> None:
    words = ("--case", "22+5", "--whole", "--microbatches", "8")
    report = fill(run, *words)
    own = report["own_plans"]
    assert set(own["encoders"]) == {"vit-22b", "vit-5b"}
    assert own["step_seconds"] < report["best"]["step_seconds"]
    _, out, _ = run("schedule", "fill", *words)
    assert "With a plan of its own for each encoder (vit-22b PP" in out
    assert fill(run, "--microbatches", "4")["own_plans"] is None


def test_plans_that_copy_too_much_are_refused(run) -> None:
    report = fill(run, "--encoder-memory", "0")
    assert {one["encoder_copies"] for one in report["plans"]} == {0}
    assert any("of the model states, more than 0.0%" in why for why in report["refused"].values())


def test_terminal_and_page_say_the_same(run, tmp_path: Path) -> None:
    words = ("schedule", "fill", "--case", "A", "--out", str(tmp_path / "a.html"))
    _, out, _ = run(*words)
    page = html.unescape((tmp_path / "a.html").read_text()).replace("\N{NO-BREAK SPACE}", " ")
    said = [line for line in out.splitlines() if line.startswith(("The language", "Memory:"))]
    assert len(said) == 2
    assert all(line in page for line in said)
    both = re.findall(r"([\d.]+ GiB) with(?:out)? ", said[1])
    assert len(both) == 2
    assert all(f"<td>{held}</td>" in page for held in both)


def test_an_executable_plan_has_whole_layers_and_says_what_kernels_would_add(
    run, tmp_path: Path
) -> None:
    base = (
        "--case", "3072", "--pp-enc", "2", "--tp-enc", "8", "--executable",
        "--no-encoder-collectives",
    )  # fmt: skip
    report = fill(run, *base, "--out", str(tmp_path / "filled.txt"))
    assert report["best"]["eff"] < report["kernel_level"]["eff"]
    assert report["best"]["step_seconds"] >= report["kernel_level"]["step_seconds"]
    assert report["best"]["longest_piece_us"] is None
    check(parse_program((tmp_path / "filled.txt").read_text()))
    _, out, _ = run("schedule", "fill", *base)
    assert "for which a model's modules offer points, would hide" in out
    finer = fill(run, *base, "--pieces", "2", "--out", str(tmp_path / "finer.txt"))
    assert finer["best"]["eff"] >= report["best"]["eff"]
    program = parse_program((tmp_path / "finer.txt").read_text())
    check(program)
    # 24 of the 48 layers on a rank of two, in two pieces
    assert len({item.kind for item in program.ranks[0] if item.kind[:2] == "EF"}) == 48
    status, _, err = run("schedule", "fill", *base, "--trace", "step.json")
    assert status != 0
    assert "--executable plans simulated steps; leave out --trace" in err


def test_fill_reads_a_profile_and_a_trace(run, tmp_path: Path) -> None:
    setup = case_setup("A")
    (tmp_path / "job.json").write_text(dump_setup(setup))
    found = fill(run, "--profile", str(tmp_path / "job.json"), "--pp-enc", "1", "--tp-enc", "8")
    assert found["best"]["pp_enc"] == 1
    (tmp_path / "bad.json").write_text("{}")
    status, _, err = run("schedule", "fill", "--trace", str(tmp_path / "bad.json"))
    assert status == 2
    assert "traceEvents" in err


def test_fill_takes_a_model_on_a_device(run) -> None:
    words = ("--model", "internvit-6b+internlm2-20b", "--tp", "8", "--pp", "4", "--dp", "4")
    report = fill(run, *words, "--microbatches", "8", "--encoder-memory", "1")
    assert report["best"]["pp_enc"] == 1
    assert report["best"]["encoder_copies"] == pytest.approx(0.68, abs=0.02)
    status, _, err = run("schedule", "fill", *words, "--case", "A")
    assert (status, "give one of --case, --profile and --model" in err) == (2, True)
    status, _, err = run("schedule", "fill", *words)
    assert status == 2
    assert "more than 12.0%; allow more, or cut encoders further" in err


def test_fill_takes_the_bubbles_of_a_measured_step(run, tmp_path: Path) -> None:
    host = host_step(case_setup("A"))
    events = []
    for rank, one in enumerate(host.gaps.ranks):
        parts = zip(one.start.tolist(), one.end.tolist(), one.kind.tolist(), strict=True)
        names = {COMPUTING: "gemm", COMMUNICATING: "nccl_gather"}
        events += [(names[k], a, b, "kernel", rank) for a, b, k in parts if k != FREE]
    end = host.gaps.step_ns
    events += [("nccl_gather", 0, 1000, "kernel", 0), ("nccl_all", end - 1000, end, "kernel", 0)]
    for at, need in enumerate(host.gaps.need_ns.tolist()):
        back = int(host.gaps.gradient_ns[at])
        events.append((f"0F{at}", need, need + 1000, "user_annotation", 0))
        events.append((f"0B{at}", back - 1000, back, "user_annotation", 0))
    rows = [
        {
            "ph": "X", "name": name, "cat": cat, "ts": a / 1e3, "dur": (b - a) / 1e3,
            "pid": rank, "args": {"device": rank},
        }
        for name, a, b, cat, rank in events
    ]  # fmt: skip
    file = tmp_path / "step.json"
    file.write_text(json.dumps({"traceEvents": rows}))
    report = fill(run, "--trace", str(file), "--pp-enc", "2", "--tp-enc", "8")
    assert report["llm_only_seconds"] == host.gaps.step_ns / 1e9
    status, _, err = run("schedule", "fill", "--trace", str(file))
    assert status == 2
    assert "4 devices and 8 microbatches, the profile 8 and 16" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pp-enc", "3"), "3 ranks do not divide 4"),
        (("--out", "x.bmp"), "end it in .svg"),
        (("--profile", "nowhere.json"), "nowhere.json"),
        (("--cost", "5"), "1 costs for 8 microbatches"),
    ],
)
def test_fill_says_what_is_wrong(run, words: tuple[str, ...], said: str) -> None:
    job = () if "--profile" in words else ("--case", "A")
    status, _, err = run("schedule", "fill", *job, *words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err
