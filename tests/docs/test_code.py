"""Every block of README.md and docs/ runs: Python as it stands, commands where they can.

A page's Python runs in one process, block after block, after what its reader has (tests/docs/
readers); only paths and numbers of workers are replaced. Names of ours must be imported by the page
itself. A command runs in a folder of its own page, unless NOT_RUN gives a reason why not: then its
words are parsed.
"""

import io
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from PIL import Image

from benchmarks.__main__ import group as benches
from counterpoise.tools.cli import group, main
from counterpoise.workers.stores.options import VARIABLE, StoreOptions
from tests.docs.pages import Block, all_pages, blocks, commands
from tests.forking.popen import run
from tests.imports import ROOT, imported
from tests.tars import write_tar

pytestmark = pytest.mark.slow

# What a page calls a folder of shards, and what it is here.
PATHS = {"/data/shards/": "shards/", "$DATA/shards/": "shards/", "/data/*.tar": "shards/*.tar"}
# As many processes as a machine of the tests has cores.
FEWER = {"num_workers=8": "num_workers=2", "[times], width=2": "[times], width=1"}
FOLDERS = {"DEMO_DATA": "shards/", "/data": "shards"}
# A program, or a word of a command: why it is only parsed here.
NOT_RUN = {
    "balancer": "serves until it is stopped; tests/tools/services runs it",
    "worker": "works until it is stopped; tests/tools/services runs it",
    "fleet": "runs until it is stopped; tests/tools/services/test_fleet.py runs it",
    "tcp://10.0.0.1:5555": "a job that runs on another machine",
    "demo": "trains for a minute; tests/tools/demo runs it",
    "s3://bucket/train/": "a store; tests/workers/stores/test_s3.py runs these",
    "job.json": "made from a profile of the reader's model",
    "counterpoise-analysis": "made by `counterpoise analyze` of the reader's data",
    "config.json": "of the reader's model; tests/sched/shapes reads 30",
    "modules.json": "the reader's own measurements",
    "memory.json": "measured by examples/recompute.py, which tests/test_examples.py runs",
    "ledger.json": "of a job that ran; tests/tools/doctor reads one",
    "step-12.json": "of a job that ran; tests/tools/schedule/test_profile.py fits such steps",
    "train.py": "the reader's own job; tests/tools/schedule/test_profile.py runs one",
    "timelines": "of a job that ran; tests/tools/schedule/test_profile.py reads such a folder",
    "letters.jsonl": "of a job that ran; tests/tools/doctor reads one",
    "my_data:conversations": "a module of the reader's; tests/tools/analyze reads one",
    "my_data:chunks": "a data set of litData; tests/tools/prepare prepares others",
    "mydata:dataset": "a module of the reader's; tests/tools/trial tries others",
    "trial.py:make_loader": "made by the reader's training program; tests/programs try such files",
    "train:Texts": "the reader's own script; tests/tools/trial runs others",
    "my_data:transform": "a module of the reader's; tests/tools/analyze uses one",
}
FRAMEWORKS = (
    (
        *("transformers.trainer", "trl.trainer.sft_trainer", "datasets", "lightning"),
        *("torch.distributed.pipelining", "torch.distributed.fsdp", "torch._dynamo"),
        "torch.distributed.tensor.parallel",
    )
    if find_spec("transformers")
    else ()
)
USES_FRAMEWORKS = re.compile(
    r"transformers|trl|datasets|lightning|accelerate|pipelining|sched\.runtime"
    r"|readers\.(runtime|edit_own_loop)|hf_p(ipeline|rocessor)"
)
SAMPLES = 540
PROFILE = {
    "placement": [0, 1, 2, 3],
    "passes": {
        "F": [{"fixed": 20_000, "per_thousand": {"tokens": 900_000}}],
        "B": [{"fixed": 40_000, "per_thousand": {"tokens": 1_800_000}}],
    },
    "ranks": 4,
}
# What a page's blocks import that `make test` does not install: check_*.py of tests/programs runs
# them, by `make test-frameworks PROGRAM=...`.
OF_PROGRAMS = {"docs/from/lhotse.md": "lhotse"}
PYTHON = [block for block in blocks("python", "py") if block.page not in OF_PROGRAMS]
PAGES = sorted({block.page for block in PYTHON})
COMMANDS = [*commands()]


def _at(page: str) -> str:
    return Path(page).stem.lower().replace("-", "_")


def reader_of(page: str) -> Path:
    """Return the file of what a page's reader has; it need not exist."""
    return Path(__file__).with_name("readers") / f"{_at(page)}.py"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return few_shards(tmp_path_factory.mktemp("data") / "shards")


def few_shards(folder: Path) -> Path:
    """Make a folder of tar shards with as many samples as README's step takes, and a few more."""
    folder.mkdir()
    members = {}
    for number in range(SAMPLES):
        said = [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "Red. "}]
        said[1]["value"] *= number % 40 + 1
        if number % 3 == 0:
            said[0]["value"] = f"<image>\n{said[0]['value']}"
            picture = io.BytesIO()
            Image.new("RGB", (64 + number % 40, 64), "red").save(picture, "JPEG")
            members[f"{number:05}.img0.jpg"] = picture.getvalue()
        members[f"{number:05}.json"] = json.dumps({"conversations": said}).encode()
    write_tar(folder / "few-0.tar", members)
    return folder


def program_of(page: str) -> str:
    """Return a program that runs a page's blocks; a traceback names the page and the line."""
    lines = ["page = {'__name__': 'page'}"]
    if reader_of(page).exists():
        lines = [f"from tests.docs.readers import {_at(page)}", f"page = vars({_at(page)})"]
    # the guard that every script with workers needs; the reader's names stay importable for them
    lines.append("if __name__ == '__main__':")
    for block in PYTHON:
        if block.page == page:
            text = block.text
            for told, here in {**PATHS, **FEWER}.items():
                text = text.replace(told, here)
            shifted = "\n" * (block.line - 1) + text
            lines.append(f"    exec(compile({shifted!r}, {page!r}, 'exec'), page)")
    return "\n".join(lines)


def frameworks_of(page: str) -> tuple[str, ...]:
    """Return what a page's process need not import anew, which takes four seconds of a core."""
    reader = reader_of(page)
    text = program_of(page) + (reader.read_text() if reader.exists() else "")
    return FRAMEWORKS if USES_FRAMEWORKS.search(text) else ()


@pytest.fixture(scope="module", autouse=True)
def _caches_are_away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let frameworks that are imported once keep nothing in this machine's caches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").symlink_to(shards)
    (tmp_path / "page.py").write_text(program_of(page))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, imported=frameworks_of(page)
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "program"), OF_PROGRAMS.items())
def test_a_page_of_a_program_is_run_by_its_tests(page: str, program: str, root: Path) -> None:
    (checks,) = (root / "tests/programs" / program).glob("check_*.py")
    assert page in checks.read_text()
    assert (root / page).exists()


def test_readers_are_given_nothing_of_ours() -> None:
    readers = [reader_of(page) for page in PAGES if reader_of(page).exists()]
    assert readers
    for reader in readers:
        assert not [name for _, name, _ in imported(reader) if name.split(".")[0] == "counterpoise"]


def _parse(words: list[str], command: click.Command = group) -> None:
    """Parse the words after `counterpoise`; click.UsageError for what a command does not take."""
    names = []
    while isinstance(command, click.Group):
        names.append(words[0])
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            raise click.UsageError(f"no command {' '.join(names)}")
        command, words = found, words[1:]
    command.make_context(" ".join(names), list(words))


def _why_not(words: list[str]) -> str:
    return next((NOT_RUN[word] for word in words if word in NOT_RUN), "")


@pytest.mark.parametrize("page", sorted({block.page for block, _ in COMMANDS}))
def test_the_commands_of_a_page_run(
    page: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "shards").symlink_to(shards)
    (tmp_path / "counterpoise-analysis").mkdir()
    Path("profile.json").write_text(json.dumps(PROFILE))
    for block, words in COMMANDS:
        if block.page == page and words[0] == "counterpoise":
            words = [PATHS.get(word, FOLDERS.get(word, word)) for word in words[1:]]
            _parse(words)
            if not _why_not(words):
                with pytest.raises(SystemExit) as ended:
                    main(words)
                assert not ended.value.code, f"{page}:{block.line}: {' '.join(words)}"


@pytest.mark.parametrize(
    ("block", "words"), [pair for pair in COMMANDS if pair[1][0] != "counterpoise"]
)
def test_other_programs_are_given_what_is_there(block: Block, words: list[str], root: Path) -> None:
    rules = (root / "Makefile").read_text()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    match words:
        case ["make", "bench", *settings]:
            # tests/benchmarks runs each with less
            given = dict(each.split("=", 1) for each in settings)
            assert {*given} <= {"NAME", "ARGS"}
            _parse([given["NAME"], *shlex.split(given.get("ARGS", ""))], benches)
        case ["make", target, *settings]:
            assert re.search(rf"^{target}:", rules, re.M)
            assert all(re.search(rf"^{each.split('=')[0]} \?=", rules, re.M) for each in settings)
        case ["pip", "install", *what]:
            extras = [name for each in what for name in re.findall(r"\[(.*)\]", each)]
            assert set(extras) <= set(project["optional-dependencies"])
        case ["python", "-m", module, *_]:
            assert find_spec(module) is not None
        case ["python", script, *_]:
            assert (root / script).is_file()
        case ["export", setting]:
            name, _, value = setting.partition("=")
            assert name == VARIABLE
            StoreOptions.parse(value)
        case ["torchrun", "train.py"]:
            pass  # the reader's own
        case ["torchrun", *_, "-m", module]:
            assert (root / f"{module.removeprefix('counterpoise.').replace('.', '/')}.py").is_file()
        case ["torchrun", *_]:
            (script,) = (word for word in words if word.endswith(".py"))
            assert (root / script).is_file()  # tests/test_examples.py runs it
        case _:
            pytest.fail(f"{block.page}:{block.line}: nobody knows how to check {words}")


def test_every_reason_is_for_a_command_that_is_there() -> None:
    said = {word for _, words in COMMANDS for word in words}
    assert set(NOT_RUN) <= said


NAMED = re.compile(r"make bench NAME=(\w+)(?: ARGS=\"([^\"]*)\")?")


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in all_pages()])
def test_the_benches_that_a_page_names_are_there(page: str, root: Path) -> None:
    for name, given in NAMED.findall((root / page).read_text()):
        command = benches.get_command(click.Context(benches), name)
        assert command is not None, f"{page}: no bench {name}"
        options = {name for each in command.params for name in each.opts}
        assert set(re.findall(r"--[a-z-]+", given)) <= options, f"{page}: {name}"
