"""The skill was followed on two scripts: each ends with the same steps, and with less waiting.

The blocks of the skill's pages run with those of the docs (tests/docs/test_code.py).
"""

import io
import json
import os
import random
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from PIL import Image

import counterpoise as cp
from tests.docs.pages import all_pages
from tests.forking.ranks import torchrun
from tests.imports import ROOT
from tests.skills.cases import CASES, SKILL, WEBDATASET_IN_ORDER, Case, write_watched
from tests.tars import write_tar

FIGURES = re.compile(r"samples, padding ([\d.]+)%, waiting ([\d.]+)%")
PAGES = [path for path in all_pages() if SKILL in path.parents]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of four tar shards of 32 pictures, of sizes that differ much."""
    folder = tmp_path_factory.mktemp("data") / "shards"
    folder.mkdir()
    draw = random.Random(0)
    for shard in range(4):
        members = {}
        for number in range(32 * shard, 32 * shard + 32):
            picture = io.BytesIO()
            wide, high = (16 + min(200, int(draw.expovariate(1 / 60))) for _ in range(2))
            Image.new("RGB", (wide, high), (number, wide, high)).save(picture, "JPEG")
            members[f"{number:05}.jpg"] = picture.getvalue()
            members[f"{number:05}.cls"] = b"%d" % (number % 3)
        write_tar(folder / f"pictures-{shard}.tar", members)
    return folder


def compared(
    case: Case, shards: Path, folder: Path, ranks: int, changes: tuple[tuple[str, str], ...]
) -> str:
    """Run a script before and after, as step 5 of the skill says; return what steps.py prints."""
    for which in ("before", "after"):
        path = write_watched(case, which, folder / which, changes)
        (path.parent / "shards").symlink_to(shards)
        environment = {
            **os.environ, "STEPS": str(folder / f"steps-{which}"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }  # fmt: skip
        words = ["--standalone", "--nproc-per-node", str(ranks), path.name, *case.words]
        done = torchrun(words, cwd=path.parent, env=environment)
        assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, SKILL / "scripts" / "steps.py", "steps-before", "steps-after"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_ends_balanced(case: Case, shards: Path, tmp_path: Path) -> None:
    said = compared(case, shards, tmp_path, 2, ())
    (padding, waiting), (less_padding, less_waiting) = (
        map(float, figures) for figures in FIGURES.findall(said)
    )
    assert less_padding < padding
    assert less_waiting < waiting
    if case.is_same_order:
        found = re.search(r"steps with the same real elements: (\d+) of (\d+)", said)
        assert found is not None
        assert found[1] == found[2]


@pytest.mark.long
def test_a_webdataset_script_has_the_same_gradient_on_one_rank(
    shards: Path, tmp_path: Path
) -> None:
    (case,) = (each for each in CASES if each.name == "webdataset_pictures")
    said = compared(case, shards, tmp_path, 1, WEBDATASET_IN_ORDER)
    assert "steps with the same real elements: 8 of 8" in said
    assert "first gradient, after / before: 1.0000" in said


STEP = {"samples": 8, "real": 90, "elements": 160, "square": 4.0, "microbatches": 4, "ranks": 2}
STEPS = [STEP] * 2


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 0),
        ({"elements": 90}, 0),
        ({"samples": 7}, 1),
        ({"square": 3.0}, 0),  # .867 was right, of microbatches of two samples
    ],
)
def test_another_count_is_not_the_same_steps_and_a_gradient_is_told(
    change: dict[str, float], status: int, tmp_path: Path
) -> None:
    for name, steps in (("before", STEPS), ("after", [{**step, **change} for step in STEPS])):
        for rank in range(2):
            path = tmp_path / name / f"rank-{rank}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    done = subprocess.run(
        [sys.executable, SKILL / "scripts" / "steps.py", "before", "after"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    ratio = (change.get("square", 4.0) / 4.0) ** 0.5
    beside = "(of a loss divided wrongly near 0.125, 0.25, 0.5, 2, 4, 8)"
    assert f"first gradient, after / before: {ratio:.4f} {beside}" in done.stdout


# As Fabric and Lightning start ranks: there is no RANK, nor a group, when `watch` is called.
LAUNCHED = """
import steps, torch
from torch.testing._internal.distributed.fake_pg import FakeStore

model = torch.nn.Linear(2, 1)
steps.watch(model, lambda batch: (1, 2, 2))
torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


def test_a_rank_that_is_numbered_after_watch_writes_its_own_file(tmp_path: Path) -> None:
    environment = {**os.environ, "STEPS": "before", "PYTHONPATH": str(SKILL / "scripts")}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "before").iterdir()
    assert path.name == "rank-1.jsonl"
    assert json.loads(path.read_text())["ranks"] == 2


@pytest.mark.parametrize(
    ("files", "reason"), [(0, "before has no rank-*.jsonl"), (1, "before has 1 rank-*.jsonl, ano")]
)
def test_a_run_without_the_steps_of_all_ranks_is_told(
    files: int, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    for number in range(files):
        (tmp_path / "before" / f"rank-{number}.jsonl").write_text(f"{json.dumps(STEP)}\n")
    done = subprocess.run(
        [sys.executable, SKILL / "scripts" / "steps.py", "before", "after"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(reason)


def test_the_skill_has_the_front_matter_that_agents_read() -> None:
    head = re.match(
        r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", (SKILL / "SKILL.md").read_text()
    )
    assert head is not None
    assert head[1] == SKILL.name
    assert len(head[2]) <= 1024


def test_every_page_and_script_of_the_skill_is_named_and_there() -> None:
    linked = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    }
    assert all(path.exists() for path in linked)
    found = {path for kind in ("*.md", "*.py") for path in SKILL.rglob(kind)}
    assert found - linked == {SKILL / "SKILL.md"}


def test_every_name_of_ours_that_the_skill_gives_is_there() -> None:
    for page in PAGES:
        for path in re.findall(r"\bcp\.([A-Za-z_.]+\w)", page.read_text()):
            assert attrgetter(path)(cp), f"{page.name}: no cp.{path}"


def test_agents_md_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 80
