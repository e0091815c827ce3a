"""What `make soak` measures with sees each kind of growth, planted here, and nothing else."""

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.soak.growth import Held, cpu_of, dearer, held, held_by, series_of, soak

# Clocks of which nothing is asked.
IDLE = {"nobody": lambda: 0.0}


def said(turn: Callable[[int], Any], look: Callable[[], Held]) -> str:
    """Return what a soak says of some turns, each of one step, which gets its number."""
    numbers = itertools.count()

    def step() -> int:
        turn(next(numbers))
        return 1

    with pytest.raises(AssertionError) as failed:
        soak(step, look, turns=7, warm=2, clocks=IDLE)
    return str(failed.value).partition(": ")[2]


def test_turns_that_leave_nothing_pass(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("data")
    state: dict[str, Any] = {"epoch": 0, "text": "x"}

    def turn() -> int:
        state["epoch"] = 10 * state["epoch"] + 9  # a number may have more digits
        (tmp_path / "a").read_text()
        return 1

    soak(turn, lambda: held(tmp_path, state, series_of('a{b="c"} 1')), turns=7, warm=2, clocks=IDLE)


def test_what_a_turn_leaves_behind_is_seen(tmp_path: Path) -> None:
    files, tensors, ended = list[Any](), list[torch.Tensor](), threading.Event()
    state: dict[str, Any] = {"epoch": 1}
    lines = ['# HELP of "text"', 'steps_total{job="a b"} 3.0']

    def leave(number: int) -> None:
        files.append((tmp_path / f"{number}").open("w"))
        threading.Thread(target=ended.wait, daemon=True).start()
        tensors.append(torch.zeros(10))
        state.update({f"{number}-{of_many}": "hole" for of_many in range(20)})
        lines.append(f'steps_total{{job="{number}"}} 1.0')

    found = said(leave, lambda: held(tmp_path, state, series_of("\n".join(lines))))
    ended.set()
    for file in files:
        file.close()
    for what in ("files", "threads", "tensors", "kept", "state", "series"):
        assert f"{what}: " in found


def test_entries_of_the_store_and_groups_that_stay_are_seen(tmp_path: Path) -> None:
    store = torch._C._distributed_c10d.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.PrefixStore("job", store), rank=0, world_size=1
    )
    try:
        assert "entries: " in said(lambda number: store.set(f"key/{number}", "value"), held)
        assert "groups: " in said(lambda _: dist.new_group([0]), held)
    finally:
        dist.destroy_process_group()


def test_files_and_threads_of_another_process_are_counted() -> None:
    words = "import os; os.dup(0); os.dup(0); print(flush=True); input()"
    with Popen([sys.executable, "-c", words], stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert held_by(other.pid) == Held(files=5, threads=1, children=0)
        assert 0 < cpu_of(other.pid) < 60
        other.kill()


@pytest.mark.parametrize(("last", "is_said"), [(1.0, False), (1.5, False), (1.6, True)])
def test_a_step_may_cost_half_more_and_some_turns_anything(last: float, is_said: bool) -> None:
    costs = [1.0] * 25 + [last] * 25
    costs[3] = costs[-2] = 100.0
    found = dearer([{"a thread": each, "a process": 2.0} for each in costs])
    assert found == ["CPU of a thread a step: 1 units, then 1.6"] * is_said
