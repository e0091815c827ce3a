"""What is no data set of a user's is an error that says so; scripts, streams and pages."""

import json
from pathlib import Path
from typing import Any

import pytest

from counterpoise.tools.cli import main
from counterpoise.tools.trial.subject import OWN_BATCHES, open_subject

HERE = "tests.tools.trial.kinds"
# A step so long that no loader is the limit: what is advised does not hang on the machine's speed.
LONG_STEP = ("--step-ms", "1000000", "--json")
PAGE = Path(__file__).with_name("kinds.py")


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return status, output and errors of a trial of a second without workers."""
    with pytest.raises(SystemExit) as end:
        main(["try", *words, "--seconds", "1"])
    return (int(end.value.code or 0), *capsys.readouterr())


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [
        ("nowhere.at_all:data", 2, "No module named 'nowhere'"),
        (f"{HERE}:nothing", 2, "has no 'nothing'; check the name"),
        ("nowhere.py:data", 2, "there is no file nowhere.py"),
        (f"{HERE}:join", 2, "cannot be called without arguments"),
        ("/nowhere/*.tar", 2, "/nowhere/*.tar"),
        (f"{HERE}:empty", 4, "is empty: give a data set with samples"),
        (f"{HERE}:useless", 4, "none of the first 64 samples can be used"),
        (f"{HERE}:make_loader_of_ready_batches", 4, "with --collate and --batch-size"),
        (f"{HERE}:make_balanced_loader", 4, "balanced already"),
        (f"{HERE}:make_spawning_loader", 4, "torch's workers and ours would start clean (spawn)"),
    ],
)
def test_errors(source: str, status: int, says: str, capsys: Any) -> None:
    code, _, err = ended(capsys, source)
    assert code == status, err
    assert says in err


def test_a_line_to_paste_says_when_ranks_meet(capsys: Any) -> None:
    words = (f"{HERE}:texts", "--collate", f"{HERE}:pad", "--accumulate", "4", *LONG_STEP)
    often, once = (json.loads(ended(capsys, *words, *w)[1]) for w in ((), ("--waits", "step")))
    assert any("--waits step" in note for note in often["notes"])
    assert not any("--waits step" in note for note in once["notes"])
    assert 'cp.Balance("auto", accumulate=4, waits="step"' in once["paste"][-1]
    assert all('waits="step"' in code for code in once["other_plans"])
    assert not any("waits" in code for code in (often["paste"][-1], *often["other_plans"]))
    assert once["forecast"]["waited"] < 0.8 * often["forecast"]["waited"]


def test_a_script_gives_its_loaders_arguments(capsys: Any) -> None:
    code, out, err = ended(capsys, f"{PAGE}:make_loader", *LONG_STEP)
    assert code == 0, err
    report = json.loads(out)
    given = report["settings"]
    assert (given["batch_size"], given["ranks"], given["workers"]) == (4, 2, 0)
    first, where, line = report["paste"]
    assert first == "import counterpoise as cp"
    assert where == f"# in {PAGE}, make_loader, in place of DataLoader:"
    assert line.startswith(
        "loader = cp.DataLoader(dataset, batch_size=4, shuffle=False, num_workers=0, "
        "collate_fn=join, balance="
    )


@pytest.mark.parametrize("where", [HERE, str(PAGE)])
def test_a_class_that_collates_is_made(where: str, capsys: Any) -> None:
    # A class as collate_fn makes objects of itself, in which nothing varies.
    words = (f"{where}:texts", "--collate", f"{where}:Join", "--workers", "0", *LONG_STEP)
    code, out, err = ended(capsys, *words)
    assert code == 0, err
    report = json.loads(out)
    assert report["costs"]["vary"]
    assert "collate_fn = Join()" in report["paste"]


@pytest.mark.parametrize("name", ["joiner", "join_at_once"])
def test_a_collator_that_is_no_function_is_in_the_lines_to_paste(name: str, capsys: Any) -> None:
    words = (f"{HERE}:texts", "--collate", f"{HERE}:{name}", "--workers", "0", *LONG_STEP)
    code, out, err = ended(capsys, *words)
    assert code == 0, err
    paste = json.loads(out)["paste"]
    assert [f"from {HERE} import {name}", f"collate_fn = {name}"] == paste[-3:-1]
    assert "collate_fn=collate_fn" in paste[-1]


def test_who_chooses_batches_is_told_what_the_forecast_compares_with() -> None:
    for name, notes in (("make_loader_of_own_batches", (OWN_BATCHES,)), ("make_loader", ())):
        assert open_subject(f"{PAGE}:{name}", None, None, "", "").notes == notes


def test_an_order_that_no_plan_stands_for_is_refused_with_the_line_to_write(capsys: Any) -> None:
    code, out, err = ended(capsys, f"{PAGE}:make_weighted_loader", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["verdict"].startswith('balance="auto" cannot run as it is; a step would be')
    assert any("leave it and write shuffle=True" in note for note in report["notes"])
    assert report["paste"] == ['# nothing to paste: balance="auto" cannot run as it is']


def test_a_stream_is_measured_and_not_planned(capsys: Any) -> None:
    words = (f"{HERE}:Stream", "--collate", f"{HERE}:join", "--workers", "0")
    code, out, err = ended(capsys, *words, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["is_stream"]
    assert report["samples"] is None
    assert set(report["systems"]) == {"torch", "ours"}
    assert report["verdict"].startswith("A stream's samples come as they come")
    assert report["forecast"] is None


def test_what_no_collate_function_takes_is_measured_in_lists(capsys: Any) -> None:
    code, out, err = ended(capsys, f"{HERE}:odd", "--workers", "0", "--json")
    assert code == 0, err
    assert any("give --collate MODULE:NAME" in note for note in json.loads(out)["notes"])


def test_terminal_and_page(capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    page = tmp_path / "try.html"
    words = (f"{HERE}:texts", "--collate", f"{HERE}:join", "--workers", "0")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = ended(capsys, *words, "--step-ms", "1000000", "--out", str(page))
    assert code == 0, err
    *lines, last = out.splitlines()
    assert last.startswith("loader = cp.DataLoader(texts, ")
    pasted = lines.index("Paste:")
    assert all(len(line) <= 80 for line in lines[:pasted])
    assert lines[pasted + 1 :] == [
        "import counterpoise as cp", f"from {HERE} import texts", f"from {HERE} import join",
    ]  # fmt: skip
    text = page.read_text()
    assert last.replace('"', "&#34;") in text
    assert "http" not in text.replace("http://www.w3.org", "")
