"""`counterpoise analyze` as it is called: keys, advice, errors, and the demo's figures."""

import contextlib
import html
import io
import json
import tarfile
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from counterpoise.balancer import Balance
from counterpoise.tools.analyze.command import command
from counterpoise.tools.cli import main
from counterpoise.tools.demo.command import BUDGETS, VIRTUAL_RANKS, microbatches
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.train import StepRecord, measure_load, summarize

KEYS = {
    "samples", "unreadable", "duplicate_keys", "resources", "forecast", "other_plans",
    "recommended", "gain", "settings",
}  # fmt: skip


def analyze(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    with pytest.raises(SystemExit) as end:
        main(["analyze", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    found: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
    return found


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as end:
        main(["analyze", *map(str, words)])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    return printed.out


def fails(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as end:
        main(["analyze", *map(str, words)])
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skewed")
    rng = np.random.default_rng(0)
    tiles = rng.choice([0, 1, 2, 7, 12], 3000, p=[0.2, 0.3, 0.2, 0.2, 0.1])
    tokens = np.clip(rng.lognormal(5, 0.8, 3000), 20, 1500).astype(int) + 256 * tiles
    keys = [f"s{k}" for k in range(2990)] + [f"s{k}" for k in range(10)]
    np.savez(folder / "costs.npz", tiles=tiles, tokens=tokens, key=keys, source=tiles % 2)
    return folder / "costs.npz"


@pytest.fixture(scope="module")
def analyzed(skewed: Path) -> tuple[dict[str, Any], str]:
    """Return the report on skewed data, and what the terminal shows; files lie beside the data."""
    terminal = io.StringIO()
    with contextlib.redirect_stdout(terminal), pytest.raises(SystemExit) as end:
        main(["analyze", str(skewed), "--out", str(skewed.parent)])
    assert end.value.code == 0
    found: dict[str, Any] = json.loads((skewed.parent / "report.json").read_text())
    return found, terminal.getvalue()


def test_the_report_has_the_figures_that_are_promised(analyzed: tuple[dict[str, Any], str]) -> None:
    found, _ = analyzed
    assert set(found) >= {*KEYS, "seconds"}
    assert (found["samples"], found["unreadable"], found["duplicate_keys"]) == (3000, 0, 10)
    assert set(found["resources"]) == {"tiles", "tokens"}
    assert set(found["resources"]["tokens"]) >= {"p50", "p90", "p99", "max"}
    assert set(found["recommended"]["balance"]) >= {"budgets", "accumulate", "mode"}
    told = found["forecast"]
    assert told["waiting"] < 0.02 < 0.3 < told["waited"]
    assert found["gain"] == 1 - told["time"]
    assert all(told["time"] - 0.01 < each <= 1 for each in found["other_plans"].values())


def test_budgets_are_a_tenth_above_the_largest_microbatch_of_as_many_as_now(
    skewed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    analyzed: tuple[dict[str, Any], str],
) -> None:
    most = analyzed[0]["recommended"]["balance"]["budgets"]
    words = [word for name, size in most.items() for word in ("--budget", f"{name}={size}")]
    again = analyze(capsys, skewed, *words, "--out", tmp_path)
    assert again["forecast"] == analyzed[0]["forecast"]
    assert all(again["forecast"]["largest"][name] <= size for name, size in most.items())
    loose = analyze(capsys, skewed, "--budget", "tokens=99999", "--out", tmp_path)
    assert 10 * most["tokens"] < 11 * loose["forecast"]["largest"]["tokens"]


def test_the_index_that_is_written_is_a_source_again(
    analyzed: tuple[dict[str, Any], str],
    skewed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, _ = analyzed
    again = analyze(capsys, skewed.with_name("index.npz"), "--out", tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == again
    for name in ("samples", "duplicate_keys", "resources", "forecast", "recommended", "heaviest"):
        assert again[name] == first[name]


def test_even_data_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "even.npz", tiles=np.full(800, 2), tokens=np.full(800, 700))
    found = analyze(capsys, tmp_path / "even.npz", "--out", tmp_path / "out")
    assert found["gain"] < 0.03
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Balancing would gain less than 3\N{NO-BREAK SPACE}%: leave it off" in page


def test_costs_of_any_name_are_analyzed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = np.random.default_rng(0).integers(1, 400, 500)
    np.savez(tmp_path / "video.npz", frames=frames)
    found = analyze(
        capsys, tmp_path / "video.npz", "--resource", "frames", "--out", tmp_path / "out"
    )
    assert list(found["recommended"]["balance"]["budgets"]) == ["frames"]
    assert found["forecast"]["waiting"] < found["forecast"]["waited"]


def test_a_handful_of_samples_is_analyzed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (1, 5, 40):
        np.savez(tmp_path / "few.npz", tiles=np.arange(count), tokens=np.arange(count) + 1)
        found = analyze(capsys, tmp_path / "few.npz", "--out", tmp_path / "out")
        assert found["samples"] == count


def test_people_read_the_settings_in_the_terminal(analyzed: tuple[dict[str, Any], str]) -> None:
    report, text = analyzed
    assert "Settings to paste:" in text
    for line in report["recommended"]["settings"].splitlines():
        assert line.strip() in text


def test_balance_load_reads_what_it_writes_and_the_snippet_is_the_same(
    analyzed: tuple[dict[str, Any], str], skewed: Path
) -> None:
    found = analyzed[0]["recommended"]
    loaded = Balance.load(skewed.with_name("balance.json"))
    assert loaded == Balance.from_json(json.dumps(found["balance"]))
    assert loaded == eval(found["code"], {"Balance": Balance})
    assert (loaded.layout, set(loaded.budgets)) == ("packed", {"tiles", "tokens"})
    page = skewed.with_name("report.html").read_text()
    assert found["settings"] in html.unescape(page)
    assert found["code"] in found["settings"]


def test_samples_that_cost_nothing_are_told_to_leave_balancing_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "none.npz", tiles=np.zeros(9, int), tokens=np.zeros(9, int))
    assert "leave it off" in shown(capsys, tmp_path / "none.npz", "--out", tmp_path / "out")


def test_a_sample_of_a_table_is_measured(
    skewed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = analyze(capsys, skewed, "--samples", 500, "--out", tmp_path / "out")
    assert (found["samples"], found["analyzed"]) == (3000, 500)


def test_mistakes_are_told_in_a_line(
    skewed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", tmp_path / "out")
    assert "no such cost; name one of tiles" in fails(capsys, skewed, "--budget", "bytes=3", *out)
    assert "write RESOURCE=AMOUNT" in fails(capsys, skewed, "--budget", "tiles", *out)
    np.savez(tmp_path / "nan.npz", tokens=np.full(3, np.nan))
    assert "none of 3 samples" in fails(capsys, tmp_path / "nan.npz", *out)


@pytest.mark.slow
def test_the_demo_waits_as_long_as_analyze_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One from delivered tensors, the other from probes: same data, seed and plan."""
    shards = ensure_demo_data(tmp_path, samples=256)
    words = ["--ranks", str(VIRTUAL_RANKS), "--accumulate", "2", "--batch-size", "4"]
    words += [word for n, value in BUDGETS.items() for word in ("--budget", f"{n}={value}")]
    transform = ("--transform", "counterpoise.tools.demo.transform:transform")
    report = analyze(capsys, shards, *transform, *words, "--out", tmp_path / "out")
    for name, run in (("waited", "torch"), ("waiting", "balanced")):
        steps = groupby(microbatches(run, shards, workers=0), key=attrgetter("step"))
        records = [
            StepRecord(tuple(measure_load(each, cpu_s=1.0) for each in step), loss=1.0)
            for _, step in steps
        ]
        waiting = summarize(records)["waiting"]
        assert report["forecast"][name] == pytest.approx(waiting, abs=0.02)


class Uncosted:
    """A dataset that says nothing about costs."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> list[int]:
        return [0] * (1 + index * index % 97)


class Equal(Uncosted):
    """A dataset in which nothing could cost anything."""

    def __getitem__(self, index: int) -> list[int]:
        return [index] * 7


def test_settings_of_found_costs_are_those_of_a_loader_that_balances_by_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = f"{__name__}:Uncosted", tmp_path / "out"
    report = analyze(capsys, source, "--out", out, "--ranks", 2, "--workers", 1)
    assert report["costs_found"] == "elements"
    pasted = report["recommended"]["settings"].replace("num_workers=8, ", "collate_fn=list, ")
    pasted = pasted.replace('layout="packed"', 'layout="torch"')
    names: dict[str, Any] = {"dataset": Uncosted()}
    exec(pasted, names)
    steps = list(names["loader"].steps())
    for batch, info in zip(steps[0].microbatches, steps[0].infos, strict=True):
        assert info.costs == {"elements": sum(map(len, batch))}
    few = analyze(capsys, source, "--out", out, "--samples", 99, "--ranks", 2, "--workers", 1)
    assert "# not all were measured: give DataLoader a cost=" in few["recommended"]["settings"]


def test_a_dataset_without_costs_is_told_to_name_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"{__name__}:Equal"
    text = " ".join(shown(capsys, source, "--out", tmp_path / "out").split())
    assert "No sample's cost is known" in text
    assert "--cost MODULE:NAME" in text
    assert "leave it off" not in text


@pytest.mark.parametrize("name", ["costs.csv", "costs.json"])
def test_a_table_of_another_kind_is_told_which_there_are(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("tiles,tokens\n1,2\n")
    error = fails(capsys, tmp_path / name, "--out", tmp_path / "out")
    assert "give costs as .npz, .jsonl, .parquet" in error
    assert "tar file" not in error


def test_a_transform_of_ones_own_counts_its_own_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words_only.py").write_text(
        "import counterpoise as cp\n"
        "def tokenizer(text):\n    return [1] * len(text.split())\n"
        "transform = cp.workers.VisionLanguage(tokenizer, image_token_id=0)\n"
    )
    with tarfile.open("a.tar", "w") as tar:
        for number in range(64):
            body = ("word " * (number + 1)).encode()
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    words = ["a.tar", "--ranks", 2, "--out", "out"]
    found = analyze(capsys, *words, "--transform", "words_only:transform")
    assert found["resources"]["tokens"]["max"] == 64
    assert not found["bytes_as_tokens"]
    assert analyze(capsys, *words)["bytes_as_tokens"]


def test_no_more_options_than_somebody_asks_for() -> None:
    assert len([each for each in command.params if isinstance(each, click.Option)]) <= 16
