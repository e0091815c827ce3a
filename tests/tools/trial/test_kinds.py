"""Eight kinds of data, of which the truth is known: advice, counts and lines are right for each."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.tools.cli import main
from tests.loader.auto.tar_data import write_shards
from tests.tools.trial import kinds

datasets = pytest.importorskip("datasets")
HERE = "tests.tools.trial.kinds"
PACKED = 'cp.Balance("auto", layout="packed")'
LENGTHS = [kinds.texts.length(index) for index in range(kinds.COUNT)]


def tried(capsys: pytest.CaptureFixture[str], *words: str, workers: int = 0) -> dict[str, Any]:
    """Return the report of a short trial."""
    given = ["try", *words, "--json", "--seconds", "1", "--workers", str(workers)]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--step-ms", "1000000"] if "--step-ms" not in words else given)
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    report: dict[str, Any] = json.loads(out)
    assert not any(one["failed"] for one in report["systems"].values())
    return report


def run_pasted(report: dict[str, Any]) -> Any:
    """Run the lines as a user would; return the first batch."""
    found: dict[str, Any] = {}
    exec("\n".join(report["paste"]), found)
    batches = iter(found["loader"])
    batch = next(batches)
    del batches
    found["loader"].close()
    return batch


def test_own_class_whose_batches_are_packed_is_balanced(capsys: Any) -> None:
    report = tried(capsys, f"{HERE}:texts", "--collate", f"{HERE}:join", "--ranks", "4")
    waited = kinds.random_waiting(LENGTHS, 4, 8)
    told = report["forecast"]
    assert told["waited"] == pytest.approx(waited, abs=0.08)
    assert told["waiting"] < 0.03
    # the work stays, so that the step is shorter by what was waiting
    assert told["time"] == pytest.approx((1 - told["waited"]) / (1 - told["waiting"]), abs=0.01)
    assert report["verdict"].startswith('balance="auto" makes a step')
    assert report["paste"][-1].endswith('collate_fn=join, balance="auto")')
    assert next(each["change"][:15] for each in report["better"]) == "a length column"
    assert len(run_pasted(report)["number"]) == 8


def test_own_class_whose_batches_are_padded_needs_free_counts(capsys: Any) -> None:
    report = tried(capsys, f"{HERE}:texts", "--collate", f"{HERE}:pad", "--ranks", "4")
    longest = kinds.longest_of(LENGTHS, 8)
    padding = 1 - sum(LENGTHS) / len(LENGTHS) / longest
    assert report["forecast"]["padding_random"] == pytest.approx(padding, abs=0.08)
    assert report["verdict"].startswith("With 8 samples in every microbatch")
    assert 'balance=cp.Balance("auto", counts="free")' in report["paste"][-1]
    packed = report["other_plans"][PACKED]
    free = report["other_plans"]['cp.Balance("auto", counts="free")']
    assert packed < free < 0.8
    run_pasted(report)


def test_padding_to_a_multiple_is_counted_and_not_where_batches_are_packed(capsys: Any) -> None:
    words = (f"{HERE}:few", "--ranks", "2", "--collate")
    padded, rounded = (tried(capsys, *words, f"{HERE}:{name}") for name in ("pad_ids", "pad_to_64"))
    assert rounded["costs"]["work"] == "tokens padded to multiples of 64"
    lengths = np.array([[-(-length // k) * k for length in LENGTHS[:64]] for k in (1, 64)])
    longest, slowest = ([kinds.longest_of(row.tolist(), k) for row in lengths] for k in (8, 2 * 8))
    told = [report["forecast"]["padding_random"] for report in (padded, rounded)]
    assert told == pytest.approx(list(1 - lengths[0].mean() / np.array(longest)), abs=0.08)
    assert told[1] > told[0]
    # packed steps are the same, beside longer ones of now
    packed = [report["other_plans"][PACKED] for report in (padded, rounded)]
    assert packed[1] / packed[0] == pytest.approx(slowest[0] / slowest[1], abs=0.05)


def test_labels_that_are_shifted_already_are_seen_and_said(capsys: Any) -> None:
    report = tried(capsys, f"{HERE}:shifted", "--collate", f"{HERE}:join", "--ranks", "4")
    assert report["costs"]["labels_shifted"]
    balance = 'balance=cp.Balance("auto", layout=cp.Layout("torch", shift_labels=False))'
    assert report["paste"][-1].endswith(f"collate_fn=join, {balance})")
    assert any("shift_labels=False" in note for note in report["notes"])
    assert not report["systems"]["auto"]["failed"]
    run_pasted(report)


def test_tar_shards(capsys: Any, tmp_path: Path) -> None:
    write_shards(tmp_path)
    words = (f"{tmp_path}/*.tar", "--transform", "tests.loader.auto.tar_data:tokens_of")
    report = tried(capsys, *words, "--collate", f"{HERE}:join_tokens", "--ranks", "2")
    assert report["samples"] == 40
    assert report["costs"]["only_loading_shows"]  # the transform has no probe
    assert "cp.TarDataset(" in report["paste"][-3]
    run_pasted(report)


def test_parquet_of_texts_gets_our_transform_which_is_said(capsys: Any, tmp_path: Path) -> None:
    lengths = [20 + 37 * number % 200 for number in range(80)]
    data = datasets.Dataset.from_dict({"text": ["x" * each for each in lengths]})
    data.to_parquet(tmp_path / "a.parquet")
    report = tried(capsys, str(tmp_path / "a.parquet"), "--ranks", "2")
    assert any("A byte counts as a token" in note for note in report["notes"])
    assert report["costs"]["work"].startswith("tokens padded")
    assert not report["costs"]["only_loading_shows"]
    run_pasted(report)


def test_jsonl_of_chats(capsys: Any, tmp_path: Path) -> None:
    rows = (
        {"messages": [{"role": "assistant", "content": "x" * (1 + 31 * number % 90)}]}
        for number in range(80)
    )
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tried(capsys, str(path), "--ranks", "2")
    assert report["samples"] == 80
    assert 'counts="free"' in report["paste"][-1]
    assert run_pasted(report)["input_ids"].ndim == 2


def test_hugging_face_folder_has_its_costs_in_a_column(capsys: Any, tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"input_ids": [[1] * each for each in LENGTHS]})
    data.save_to_disk(tmp_path / "hf")
    report = tried(capsys, str(tmp_path / "hf"), "--ranks", "2")
    assert not report["costs"]["only_loading_shows"]
    assert not any("length column" in each["change"] for each in report["better"])
    assert "datasets.load_from_disk" in "\n".join(report["paste"])
    assert run_pasted(report)["input_ids"].ndim == 2


def test_samples_of_equal_length_cannot_gain(capsys: Any) -> None:
    report = tried(capsys, f"{HERE}:equal", "--collate", f"{HERE}:pad")
    assert report["verdict"].startswith("Balance cannot gain: nothing in the samples varies")
    assert report["forecast"] is None
    assert report["better"] == []
    assert "balance" not in "\n".join(report["paste"])


def test_one_that_cannot_be_pickled_is_read_where_workers_are_forked(capsys: Any) -> None:
    words = (f"{HERE}:locked", "--collate", f"{HERE}:join", "--ranks", "4")
    report = tried(capsys, *words, workers=1)
    assert "_thread.lock" in report["unpicklable"]
    assert any("cannot be pickled" in note and "neither" in note for note in report["notes"])
    assert report["paste"][-1].endswith('balance="auto")')


def test_broken_samples_are_counted_and_named(capsys: Any) -> None:
    words = (f"{HERE}:broken", "--collate", f"{HERE}:join", "--ranks", "4")
    report = tried(capsys, *words)
    assert 0 < report["broken"]["count"] <= kinds.COUNT // 3
    assert report["broken"]["named"].keys() <= {str(3 * k) for k in range(kinds.COUNT)}
    assert set(report["broken"]["named"].values()) == {"it is torn"}
    assert report["paste"][-1].endswith('balance="auto", on_error="skip")')
    run_pasted(report)


def test_pictures_padded_in_two_directions_are_foretold_nothing(capsys: Any) -> None:
    report = tried(capsys, f"{HERE}:pictures", "--collate", f"{HERE}:pad_both")
    assert not report["costs"]["recognised"]
    assert report["verdict"].startswith("A step cannot be foretold")
    assert not [line for line in report["paste"] if "balance" in line]
