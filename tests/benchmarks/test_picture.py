"""`make bench NAME=picture`: what is drawn is what was delivered."""

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.planning import picture

IN_A_STEP = picture.RANKS * picture.EACH * picture.ACCUMULATE


def texts(folder: Path, count: int) -> str:
    """Write a shard of texts of very different lengths; return its pattern."""
    lengths = np.random.default_rng(0).lognormal(5, 1, count).astype(int) + 1
    with tarfile.open(folder / "texts-0.tar", "w") as tar:
        for number, length in enumerate(lengths):
            member = tarfile.TarInfo(f"{number:05}.txt")
            member.size = length
            tar.addfile(member, io.BytesIO(b"x" * length))
    return str(folder / "texts-*.tar")


def test_the_picture_of_a_delivered_step_has_a_bar_for_each_rank(tmp_path: Path) -> None:
    out = tmp_path / "step.svg"
    asked = ["--data", texts(tmp_path, IN_A_STEP), "--out", str(out), "--json"]
    done = CliRunner().invoke(picture.command, asked, catch_exceptions=False)
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["samples"], report["steps"]) == (IN_A_STEP, 1)
    # the same samples, so the same tokens but for padding and waiting
    own = [
        way["step_tokens"] * (1 - way["waiting"] - way["padding"])
        for way in report["ways"].values()
    ]
    assert own == pytest.approx(own[:1] * 3)
    random, auto, packed = (report["ways"][way]["step_tokens"] for way in picture.WAYS)
    assert random > auto > packed
    assert report["ways"]['balance="auto", layout="packed"']["padding"] == 0
    svg = out.read_text()
    assert svg.count("tokens of samples</title>") == 3 * picture.RANKS
    assert "prefers-color-scheme:dark" in svg


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    work = np.array([[300, 100], [100, 0]])
    svg = picture.picture({"random order": work})
    widths = {
        name: float(width)
        for width, name in re.findall(r'width="([\d.]+)"[^>]*><title>([^<]*)</title>', svg)
    }
    assert picture.figures(work[None]) == {"step_tokens": 400, "waiting": 0.375, "padding": 0.125}
    whole = picture.RIGHT - picture.LEFT
    assert widths == pytest.approx(
        {
            "rank 0: 300 tokens of samples": 0.75 * whole,
            "rank 0: 100 padding": 0.25 * whole,
            "rank 1: 100 tokens of samples": 0.25 * whole,
            "rank 1: 300 waiting for the slowest rank": 0.75 * whole,
        },
        abs=0.1,
    )


@pytest.mark.long
def test_the_readme_shows_what_the_command_draws(root: Path, data: Path, tmp_path: Path) -> None:
    if not (data / "shards").is_dir():
        pytest.skip("no shards here")
    out = tmp_path / "step.svg"
    asked = ["--data", str(data / "shards" / "*.tar"), "--out", str(out), "--json"]
    done = CliRunner().invoke(picture.command, asked, catch_exceptions=False)
    assert out.read_text() == (root / "docs" / "images" / "step.svg").read_text()
    readme = (root / "README.md").read_text()
    for way in json.loads(done.stdout.splitlines()[-1])["ways"].values():
        assert f"{way['step_tokens']:,.0f}" in readme


def test_too_few_samples_for_a_step_are_refused(tmp_path: Path) -> None:
    asked = ["--data", texts(tmp_path, 40)]
    with pytest.raises(ValueError, match="40 samples are less than a step of 256"):
        CliRunner().invoke(picture.command, asked, catch_exceptions=False)
