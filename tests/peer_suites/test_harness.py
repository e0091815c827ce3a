"""`make peer-suites`: the swap changes imports only, and every test is counted once."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.peer_suites import attached
from tests.peer_suites.__main__ import read_exceptions, run_noted, run_suite
from tests.peer_suites.comparison import MOST_EXCEPTED, compare, render
from tests.peer_suites.outcomes import run_checkout, run_tests
from tests.peer_suites.suites import (
    ATTACHING,
    BALANCED,
    OURS,
    OURS_BESIDE_PLUGIN,
    OURS_WITH_STATE,
    SUITES,
    TORCH,
    CheckoutSuite,
    LoaderClass,
)
from tests.peer_suites.swap import swap_loader

SUITE = '''import torch
from torch.utils.data import (
    Dataset,
    DataLoader,
    TensorDataset,
)
JOIN_TIMEOUT = 60.0  # seconds
SCRIPT = """
from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader
"""
loader = torch.utils.data.DataLoader([1])
'''
OUTCOMES = """
import os
import unittest

class TestIt(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): self.assertEqual(1, 2)
    def test_is_skipped(self): self.skipTest("no")
    def test_ends_its_process(self): os._exit(3)
"""
TRAINERS = """
from transformers import Trainer, TrainingArguments
from torch.nn import Linear

ROWS = [{"input_ids": [1] * size, "labels": [1] * size} for size in range(1, 9)]

class Tuner(Trainer):
    def __init__(self, *args, packing=False, **named):
        super().__init__(*args, **named)
        self.packing = packing

def make_loader(kind, folder, **named):
    args = TrainingArguments(str(folder), report_to=[])
    trainer = kind(Linear(1, 1), args, **named)
    return trainer.get_train_dataloader()

def test_ours_in_a_subclass_that_knows_more(tmp_path):
    kind = type(make_loader(Tuner, tmp_path, train_dataset=ROWS))
    assert kind.__module__.startswith("counterpoise")

def test_theirs(tmp_path):
    kind = type(make_loader(Trainer, tmp_path, train_dataset=ROWS))
    assert not kind.__module__.startswith("counterpoise")

def test_refused(tmp_path):
    make_loader(Tuner, tmp_path, train_dataset=ROWS, packing=True)

def test_without_data(tmp_path):
    Trainer(Linear(1, 1), TrainingArguments(str(tmp_path), report_to=[]))
"""


def test_the_swap_replaces_each_import_of_the_loader() -> None:
    swapped = swap_loader(SUITE, LoaderClass("elsewhere", "Loader"))
    assert "from torch.utils.data import Dataset, TensorDataset\n" in swapped
    assert swapped.count("from elsewhere import Loader as DataLoader") == 2
    assert "stateful" not in swapped
    assert "\nloader = DataLoader([1])" in swapped
    assert "\nJOIN_TIMEOUT = 400\n" in swapped


def test_the_swap_for_torchs_own_loader_leaves_it_torchs() -> None:
    names = {}
    exec(swap_loader(SUITE.replace("loader = ", "made = "), TORCH), names)
    assert type(names["made"]).__module__ == "torch.utils.data.dataloader"


@pytest.mark.long
def test_a_test_that_ends_its_process_fails_alone() -> None:
    outcomes = run_tests(OUTCOMES, "test_it.py", jobs=1)
    assert outcomes.pop("test_it.TestIt.test_passes") == "passed"
    assert outcomes.pop("test_it.TestIt.test_is_skipped") == "skipped"
    assert "1 != 2" in outcomes.pop("test_it.TestIt.test_fails")
    assert "crashed" in outcomes.pop("test_it.TestIt.test_ends_its_process")
    assert not outcomes


@pytest.mark.long
def test_in_a_checkout_the_class_stands_for_torchs_in_every_module(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/theirs.py").write_text(
        "from torch.utils.data import DataLoader\nclass Loader(DataLoader): pass\n"
    )
    (tmp_path / "tests").mkdir()  # a package by the name of ours
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/test_it.py").write_text(
        "import pytest, theirs\n"
        "from importlib import metadata\n"
        "OURS = 'counterpoise.loader.dataloader'\n"
        "def test_ours(): assert theirs.Loader.__mro__[1].__module__ == OURS\n"
        "def test_torch(): assert theirs.Loader.__mro__[1].__module__.startswith('torch')\n"
        "def test_hidden_is_neither_imported_nor_installed():\n"
        "    with pytest.raises(ImportError): import msgpack\n"
        "    with pytest.raises(metadata.PackageNotFoundError): metadata.version('msgpack')\n"
    )
    suite = CheckoutSuite("theirs", ".", ("tests/test_it.py",), ("src",), ("msgpack",))
    loaders = {"test_ours": "counterpoise:DataLoader", "test_torch": "torch.utils.data:DataLoader"}
    for name, loader in loaders.items():
        outcomes = run_checkout(tmp_path, suite, loader, 1, tmp_path / "notes")
        assert [test for test, end in outcomes.items() if end == "passed"] == [
            f"tests.test_it.{name}",
            "tests.test_it.test_hidden_is_neither_imported_nor_installed",
        ]


@pytest.mark.long
def test_a_suite_may_be_about_another_class_than_torchs(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/defined.py").write_text("class Loader: pass\n")
    (tmp_path / "parts/__init__.py").write_text("from .defined import Loader\n")
    (tmp_path / "test_it.py").write_text(
        "import inspect, parts.defined\n"
        "from parts import Loader\n"
        "def test_ours():\n"
        "    assert Loader is parts.defined.Loader\n"
        "    arguments = inspect.signature(Loader.__init__).parameters\n"
        "    assert {'snapshot_every_n_steps', 'num_workers'} <= set(arguments)\n"
    )
    control = LoaderClass("parts", "Loader")
    suite = CheckoutSuite("theirs", ".", ("test_it.py::test_ours",), control=control)
    ours, theirs = (
        run_checkout(tmp_path, suite, f"{loader.module}:{loader.name}", 1, tmp_path / "notes")
        for loader in (OURS_BESIDE_PLUGIN, control)
    )
    assert ours == {"test_it.test_ours": "passed"}
    assert theirs["test_it.test_ours"] != "passed"


@pytest.mark.long
def test_a_file_that_a_checkout_lacks_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/test_it.py").write_text("def test_passes(): pass\n")
    suite = CheckoutSuite("theirs", "theirs", ("test_it.py", "test_newer.py"))
    assert run_suite(suite, tmp_path, jobs=1).passed == 1
    assert capsys.readouterr().err == "theirs: this checkout has no test_newer.py\n"


@pytest.mark.long
def test_each_trainer_with_data_has_a_loader_of_ours_attached_or_says_why_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(TRAINERS)
    suite = CheckoutSuite("theirs", ".", ("test_it.py",), ours=BALANCED)
    control, _ = run_noted(tmp_path, replace(suite, ours=TORCH), jobs=1)
    ours, notes = run_noted(tmp_path, suite, jobs=1)
    theirs, as_ours = "test_it.test_theirs", "test_it.test_ours_in_a_subclass_that_knows_more"
    assert [control[theirs], ours[as_ours]] == ["passed", "passed"]
    assert "passed" not in (control[as_ours], ours[theirs])
    refused = {text: times for text, times in notes.items() if text != attached.ATTACHED}
    assert notes[attached.ATTACHED] == 2
    assert [times for text, times in refused.items() if text.startswith("packing=True")] == [1]


@pytest.mark.long
def test_a_suite_that_asks_the_hub_finds_models_and_data_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from datasets import load_dataset\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "def test_it():\n"
        "    name = 'trl-internal-testing/tiny-Qwen2ForCausalLM-2.5'\n"
        "    texts = load_dataset('wikitext', 'wikitext-2-raw-v1', split='train[:50]')\n"
        "    assert len({len(text) for text in texts['text']}) > 2\n"
        "    ids = AutoTokenizer.from_pretrained(name)(max(texts['text'], key=len))['input_ids']\n"
        "    assert len(ids) < AutoModelForCausalLM.from_pretrained(name).vocab_size\n"
    )
    suite = CheckoutSuite("theirs", ".", ("test_it.py",), has_hub=True)
    outcomes = run_checkout(tmp_path, suite, "torch.utils.data:DataLoader", 1, tmp_path / "notes")
    assert outcomes == {"test_it.test_it": "passed"}


@pytest.mark.long
def test_a_driver_of_scripts_has_the_same_names_in_each_run(tmp_path: Path) -> None:
    suite = CheckoutSuite("theirs", ".", (), drivers=("drive_transformers.py",))
    outcomes = run_checkout(tmp_path, suite, "torch.utils.data:DataLoader", 1, tmp_path / "notes")
    assert outcomes[".test_training_parity"] == "skipped"  # it has no scripts


def test_trainers_are_told_and_at_least_one_has_a_loader_of_ours() -> None:
    control = {"a": "passed"}
    found = compare("any", control, control, {}, Counter({attached.ATTACHED: 3, "streams": 1}))
    assert found.good
    assert found.as_json()["notes"] == {attached.ATTACHED: 3, "streams": 1}
    assert render(found).splitlines()[1:] == ["  3 trainers: attached", "  1 trainers: streams"]
    assert not compare("any", control, control, {}, {"streams": 1}).good


def test_counted_are_the_tests_that_the_control_passes() -> None:
    control = {"a": "passed", "b": "passed", "c": "skipped", "d": "fails too", "e": "passed"}
    ours = {"a": "passed", "b": "KeyError", "c": "KeyError", "d": "KeyError"}
    found = compare("any", control, ours, {"e": "because"})
    assert (found.counted, found.passed) == (3, 1)
    assert found.failed == {"b": "KeyError"}
    assert found.excepted == {"e": "because"}
    assert not found.good
    assert render(found).splitlines()[0] == "any: 1 of 3 that the control passes, 1 excepted"
    assert compare("any", control, ours, {"e": "because", "b": "because"}).good


@pytest.mark.parametrize("excepted", ["passing", "skipped", "nobody's"])
def test_an_exception_must_be_needed(excepted: str) -> None:
    control = {"passing": "passed", "skipped": "skipped"}
    assert not compare("any", control, control, {excepted: "because"}).good


def test_nothing_counted_is_not_a_success() -> None:
    assert not compare("any", {"a": "skipped"}, {"a": "passed"}, {}).good


@pytest.mark.parametrize("suite", sorted(MOST_EXCEPTED))
def test_at_most_five_may_be_excepted(suite: str) -> None:
    names = [f"test_{n}" for n in range(6)]
    control, ours = dict.fromkeys(names, "passed"), dict.fromkeys(names, "ImportError")
    reasons = dict.fromkeys(names, "because")
    assert not compare(suite, control, ours, reasons).good
    names.pop()
    reasons = dict.fromkeys(names, "because")
    assert compare(suite, dict.fromkeys(names, "passed"), ours, reasons).good


def test_the_exceptions_are_of_suites_that_exist_and_have_a_reason() -> None:
    exceptions = read_exceptions()
    assert set(exceptions) <= {suite.name for suite in SUITES}
    assert all(len(why) > 20 for reasons in exceptions.values() for why in reasons.values())
    assert all(len(exceptions.get(suite, {})) <= most for suite, most in MOST_EXCEPTED.items())


def test_what_stands_in_for_each_loader_is_there() -> None:
    for suite in SUITES:
        assert suite.ours in (OURS, OURS_WITH_STATE, OURS_BESIDE_PLUGIN, *ATTACHING)
    assert all(callable(getattr(attached, each.name)) for each in ATTACHING)
    module = __import__(OURS_WITH_STATE.module, fromlist=[""])
    loader = getattr(module, OURS_WITH_STATE.name)([1, 2], snapshot_every_n_steps=3)
    assert len(list(loader)) == 2
