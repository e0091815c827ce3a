"""`counterpoise doctor` explains ledgers and dead-letter files."""

import json

import pytest
from click.testing import CliRunner

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader
from counterpoise.loader.resume.balanced_position import ResumePosition, write_position
from counterpoise.tools.doctor.command import command
from counterpoise.tools.doctor.files import examine_dead_letters, examine_ledger
from counterpoise.workers.sources.data_identity import KnownData
from counterpoise.workers.sources.dead_letters import append_letter
from counterpoise.workers.sources.failures import SkippedSample

PLAN = PlanConfig(4, 64, "auto", ("tokens",), (None,), "isf", "greedy")
DATA = KnownData(range(1000), 1000)


@pytest.fixture
def ledger(tmp_path):
    """Write a ledger to a file and return what the doctor says, by name."""

    def examine(position, wrap=lambda state: state):
        path = tmp_path / "ledger.json"
        state = write_position(JobSpec(PLAN), 3, position, DATA)
        path.write_text(json.dumps(wrap(state)))
        return {finding.name: finding for finding in examine_ledger(path)}

    return examine


def test_a_ledger_between_steps_can_be_resumed_anyhow(ledger):
    found = ledger(ResumePosition(EpochPosition(640, 10, 10, 0, "")))
    assert found["position"].found == "epoch 3, step 10, microbatch 0, served 0"
    assert all(finding.level == "good" for finding in found.values())


def test_a_ledger_inside_a_step_says_what_it_needs(ledger):
    found = ledger(ResumePosition(EpochPosition(640, 10, 10, 2, ""), 1, (7, 650), 40, 40))
    place = "epoch 3, step 10, microbatch 2, served 1"
    assert found["position"].found == f"{place}; it goes on with 4 ranks only"
    assert "40 samples of this epoch were left out" in found["holes"].found


def test_a_ledger_inside_a_checkpoint_is_found(ledger):
    found = ledger(
        ResumePosition(EpochPosition(0, 0, 0, 0, "")),
        lambda state: {"model": {}, "loader": {"a": state}},
    )
    assert "epoch 3, step 0" in found["position"].found


def examined(tmp_path, state):
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(state))
    return {finding.name: finding.found for finding in examine_ledger(path)}


def test_a_ledger_of_a_plain_loader_is_explained(tmp_path):
    loader = DataLoader(range(23), batch_size=4)
    batches = iter(loader)
    next(batches)
    found = examined(tmp_path, loader.state_dict())
    assert "of a DataLoader without balance" in found["ledger"]
    assert found["position"] == "batches 1"


def test_a_ledger_of_a_sampler_is_explained(tmp_path):
    balance = Balance(budgets={"tokens": 9})
    sampler = BalancedBatchSampler({"tokens": [3] * 20}, balance, ranks=(0, 2))
    next(iter(sampler))
    found = examined(tmp_path, sampler.state_dict())
    assert "BalancedBatchSampler, planner" in found["ledger"]
    assert "given 1" in found["position"]


def test_a_ledger_of_the_older_format_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ValueError, match="older counterpoise"):
        examined(tmp_path, {"version": 1, "window_step": 0})


DEEP = '{"a": ' * 9_000 + "1" + "}" * 9_000


@pytest.mark.parametrize("content", ["[]", "3", '{"a": 1}', '{"window_step": 1}', "{", DEEP])
def test_what_is_no_ledger_is_refused(tmp_path, content):
    path = tmp_path / "ledger.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="ledger"):
        examine_ledger(path)


def test_what_is_no_text_is_refused(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match=r"ledger.json: 'utf-8' codec"):
        examine_ledger(path)


def test_letters_are_grouped_by_source_and_reason(tmp_path):
    path = tmp_path / "letters.jsonl"
    for number in range(5):
        append_letter(path, SkippedSample(f"k{number}", f"image {number} is cut", "data", "a.tar"))
    append_letter(path, SkippedSample("x", "timed out after 3 s", "io", "b.tar"))
    first, second = examine_dead_letters(path)
    assert first.name == "a.tar (data)"
    assert first.found.startswith("5 samples (k0, k1, k2, ...)")
    assert (second.name, second.advice) == ("b.tar (io)", "check the storage")


def test_what_is_no_dead_letter_file_is_refused(tmp_path):
    path = tmp_path / "letters.jsonl"
    with pytest.raises(ValueError, match="there is no file"):
        examine_dead_letters(path)
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="is not a dead-letter file"):
        examine_dead_letters(path)


def test_the_command_takes_both(tmp_path):
    letters, ledger = tmp_path / "letters.jsonl", tmp_path / "ledger.json"
    append_letter(letters, SkippedSample("k", "cut", "data", "a.tar"))
    ledger.write_text(
        json.dumps(
            write_position(JobSpec(PLAN), 0, ResumePosition(EpochPosition(0, 0, 0, 0, "")), DATA)
        )
    )
    for words in ([str(ledger)], ["--dead-letter", str(letters)]):
        result = CliRunner().invoke(command, [*words, "--json"], standalone_mode=False)
        assert json.loads(result.stdout.splitlines()[-1])["wrong"] == 0


ODD: dict[str, list[object]] = {
    "surrogate": ["k\ud800", "a.tar", "bad", "data"],
    "escapes": ["\x1b[31m[red]k", "[/]a.tar", "\x07\u202e", "data"],
    "empty": ["", "", "", ""],
    "long": ["k" * 10_000, "a" * 10_000, "r" * 10_000, "d" * 10_000],
    "number": [1, "a.tar", "bad", "data"],
    "null": [None, None, None, None],
    "list": [["k"], {}, True, 1e999],
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_letters_are_shown_or_passed_over(tmp_path, odd):
    path = tmp_path / "letters.jsonl"
    append_letter(path, SkippedSample("good", "cut", "data", "b.tar"))
    names = ("key", "source", "reason", "kind")
    with path.open("a") as file:
        file.write(json.dumps(dict(zip(names, ODD[odd], strict=True))) + "\n")
        file.write("[" * 9_000 + "\n" + '{"key": 1}\n\n[]\n')
    for more in ([], ["--json"]):
        result = CliRunner().invoke(command, ["--dead-letter", str(path), *more])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "good" in result.stdout
        assert "\x1b" not in result.stdout
