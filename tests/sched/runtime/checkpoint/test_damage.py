"""Damaged, foreign and unfinished checkpoints: every rank says which and why, and hangs nowhere."""

import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import (
    Pipeline,
    load_checkpoint,
    newest_checkpoint,
    resumed_schedule,
    save_checkpoint,
)
from tests.sched.runtime.cases import loader_step, mean_loss
from tests.sched.runtime.models import HIDDEN, Block, make_batches, make_stages
from tests.sched.runtime.pool import WORLD, make_mesh

pytestmark = pytest.mark.slow

DEADLINE_S = 3.0
EXTRA = {"loader": {"epoch": 1, "done": 17}}


class Named(nn.Module):
    """A stage whose tensors are called as in the whole model."""

    def __init__(self, number: int, inside: nn.Module) -> None:
        super().__init__()
        self.add_module(f"part{number}", inside)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        (inside,) = self.children()
        found: torch.Tensor = inside(*inputs)
        return found


@contextmanager
def pipeline(*, blocks: int = 1) -> Iterator[tuple[Pipeline, torch.optim.Optimizer]]:
    """Yield a pipeline over all processes, and its optimizer with moments."""
    mesh = make_mesh(WORLD)
    program = schedule("1f1b", ranks=WORLD, microbatches=WORLD)
    stages = make_stages(program.stages)
    own = mesh["pp"].get_local_rank()
    inside: nn.Module = stages[own].float()
    if own == 1:
        inside = nn.Sequential(inside, *(Block().float() for _ in range(blocks - 1)))
    pipe = Pipeline(
        mesh, schedule="1f1b", stages={own: Named(own, inside)}, hidden=HIDDEN, loss=mean_loss,
        deadline_s=DEADLINE_S,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.01)
    for parameter in pipe.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    try:
        yield pipe, optimizer
    finally:
        pipe.close()


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (OSError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


KINDS = ("flip", "flip", "flip", "zeros", "cut", "more", "swap", "older")


def damaged(draw: random.Random, kind: str, file: Path, others: list[Path], older: Path) -> bytes:
    """Return a file's bytes with some damage, or those of another file in its place."""
    data = bytearray(file.read_bytes())
    at = draw.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "zeros":
        data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    elif kind == "cut":
        del data[at:]
    elif kind == "more":
        data[at:at] = draw.randbytes(draw.randrange(1, 100))
    elif kind == "swap":
        return draw.choice(others).read_bytes()
    else:
        return (older / file.name).read_bytes()
    return bytes(data)


def damage_files(rank: int, folder: Path, times: int) -> list[str]:
    """Return the error of every damage, "" for none; files of other ranks and checkpoints, too."""
    draw, found = random.Random(3), []
    with pipeline() as (pipe, optimizer):
        save_checkpoint(folder / "step-0", pipe, optimizer, {"loader": {"epoch": 0}})
        with torch.no_grad():
            for parameter in pipe.parameters():
                parameter.add_(1.0)
        save_checkpoint(folder / "step-1", pipe, optimizer, EXTRA)
        assert load_checkpoint(folder / "step-1", pipe, optimizer) == EXTRA
        before = [p.detach().clone() for p in pipe.parameters()]
        files = sorted((folder / "step-1").iterdir())
        for number in range(times):
            file = files[number % len(files)]
            whole, kind = file.read_bytes(), KINDS[number // len(files) % len(KINDS)]
            data = damaged(draw, kind, file, files, folder / "step-0")
            dist.barrier()
            if rank == 0:
                file.write_bytes(data)
            dist.barrier()

            def load() -> None:
                resumed_schedule(folder / "step-1", "1f1b")
                load_checkpoint(folder / "step-1", pipe, optimizer)

            text = error_of(load)
            found.append(text or f"{file.name} was loaded after {kind}" * (data != whole))
            dist.barrier()
            if rank == 0:
                file.write_bytes(whole)
        assert all(map(torch.equal, before, pipe.parameters()))
        dist.barrier()
        assert load_checkpoint(folder / "step-1", pipe, optimizer) == EXTRA
    return found


def test_no_damaged_file_is_loaded(pool, tmp_path) -> None:
    for texts in pool.run(damage_files, tmp_path, 60):
        assert not [text for text in texts if "was loaded" in text]
        assert sum("is not as it was written" in text for text in texts) > 40


@pytest.mark.long
def test_none_of_a_thousand_damages_is_loaded(pool, tmp_path) -> None:
    for texts in pool.run(damage_files, tmp_path, 1000):
        assert not [text for text in texts if "was loaded" in text]


def test_a_name_that_was_changed_in_the_list_of_files_is_not_passed_over(tmp_path) -> None:
    (tmp_path / "programs.json").touch()
    (tmp_path / "checksums.json").write_text('{"programs.json": "0", "plcn.json": "0"}')
    with pytest.raises(
        ValueError, match=r"checksums\.json names plcn\.json, which .* does not hold"
    ):
        resumed_schedule(tmp_path, "1f1b")


def load_other_models(rank: int, folder: Path) -> list[str]:
    """Return the errors of a smaller and a larger model, and of a missing file."""
    with pipeline(blocks=2) as (pipe, optimizer):
        save_checkpoint(folder / "step-1", pipe, optimizer)
    with pipeline() as (pipe, optimizer):
        before = [p.detach().clone() for p in pipe.parameters()]
        smaller = error_of(lambda: load_checkpoint(folder / "step-1", pipe, optimizer))
        save_checkpoint(folder / "step-2", pipe, optimizer)
        assert all(map(torch.equal, before, pipe.parameters()))
    with pipeline(blocks=2) as (pipe, optimizer):
        larger = error_of(lambda: load_checkpoint(folder / "step-2", pipe, optimizer))
        dist.barrier()
        if rank == 0:
            (folder / "step-1" / "rank-2.pt").unlink()
        dist.barrier()
        missing = error_of(lambda: load_checkpoint(folder / "step-1", pipe, optimizer))
    return [smaller, larger, missing]


def test_another_model_or_a_missing_file_is_refused_on_every_rank(pool, tmp_path) -> None:
    for smaller, larger, missing in pool.run(load_other_models, tmp_path):
        assert "which no rank's modules have; it is another model's" in smaller
        assert "the checkpoint has no part1." in larger
        assert "rank-2.pt" in missing


def fill_the_disk(rank: int, folder: Path) -> list[str]:
    """Return the errors of saving where one rank cannot write, and train on after that."""
    found = []
    with pipeline() as (pipe, optimizer):
        for victim in (2, 0):
            old = resource.getrlimit(resource.RLIMIT_FSIZE)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            if rank == victim:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
            begun = time.monotonic()
            found.append(error_of(lambda: save_checkpoint(folder / "step-2", pipe, optimizer)))
            assert time.monotonic() - begun < DEADLINE_S
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            assert not (folder / "step-2").exists()
        batches = make_batches(WORLD, equal=True)
        pipe.step(loader_step(batches, 100))
        save_checkpoint(folder / "step-2", pipe, optimizer)
        assert load_checkpoint(folder / "step-2", pipe, optimizer) == {}
        found.append(error_of(lambda: save_checkpoint(folder / "step-2", pipe)))
    return found


def test_a_full_disk_on_one_rank_is_an_error_on_every_rank(pool, tmp_path) -> None:
    for rank, (other, first, exists) in enumerate(pool.run(fill_the_disk, tmp_path)):
        assert "OSError: [Errno 27] File too large: " in other
        assert "step-2.partial/rank-2.pt" in other
        assert (rank == 2) != (f"could not save {tmp_path}/step-2: rank 2: " in other)
        assert "step-2.partial/" in first
        assert (rank == 0) != ("rank 0: OSError" in first)
        assert exists.startswith("FileExistsError")


def test_only_whole_checkpoints_with_strict_names_are_found(tmp_path) -> None:
    def make(name: str, whole: bool = True) -> None:
        (tmp_path / name).mkdir()
        if whole:
            (tmp_path / name / "checksums.json").touch()

    assert newest_checkpoint(tmp_path / "nowhere") is None
    for name in ("logs-20261125", "step-30", "step-12.partial"):
        make(name, whole=name == "step-12.partial")
    assert newest_checkpoint(tmp_path) is None
    make("step-10.bak2")
    with pytest.raises(ValueError, match=r"is called step-NUMBER, but there is step-10\.bak2"):
        newest_checkpoint(tmp_path)
    for name in ("step-9", "step-10", "step-010x", "2step-40", "step--50", "step-٦٠", "best-70"):
        make(name)
    assert newest_checkpoint(tmp_path) == tmp_path / "step-10"
    assert newest_checkpoint(tmp_path, prefix="best-") == tmp_path / "best-70"
    shutil.rmtree(tmp_path / "step-10")
    assert newest_checkpoint(tmp_path) == tmp_path / "step-9"
