"""What `make soak` measures with sees each kind of growth, planted here, and nothing else."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
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


@pytest.fixture
def kept() -> Iterator[list[Any]]:
    """What a turn leaves behind."""
    left: list[Any] = []
    yield left
    for each in left:
        each.close()


def test_turns_that_leave_nothing_pass(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("data")
    state: dict[str, Any] = {"epoch": 0, "text": "x"}

    def turn() -> int:
        state["epoch"] = 10 * state["epoch"] + 9  # a number may have more digits
        (tmp_path / "a").read_text()
        return 1

    soak(turn, lambda: held(tmp_path, state, series_of('a{b="c"} 1')), turns=7, warm=2, clocks=IDLE)


def test_a_file_that_stays_open_is_seen(tmp_path: Path, kept: list[Any]) -> None:
    (tmp_path / "a").touch()
    assert "files: " in said(lambda _: kept.append((tmp_path / "a").open()), held)


def test_a_thread_that_stays_is_seen() -> None:
    ended = threading.Event()
    found = said(lambda _: threading.Thread(target=ended.wait, daemon=True).start(), held)
    ended.set()
    assert "threads: " in found


def test_a_process_that_stays_is_seen() -> None:
    started: list[Popen[bytes]] = []
    found = said(lambda _: started.append(Popen(["sleep", "600"])), held)
    for each in started:
        each.kill()
        each.wait()
    assert "children: " in found


def test_a_file_beside_the_data_that_grows_or_comes_is_seen(tmp_path: Path) -> None:
    def grow(number: int) -> None:
        with (tmp_path / "costs").open("a") as file:
            file.write(f"{number}\n")

    assert "kept: " in said(grow, lambda: held(tmp_path))
    (tmp_path / "below").mkdir()
    assert "kept: " in said(
        lambda number: (tmp_path / "below" / str(number)).touch(), lambda: held(tmp_path)
    )


@pytest.mark.parametrize("value", [[7], {"key": 1}, "hole", b"hole"])
def test_a_state_that_grows_is_seen(value: Any) -> None:
    state: dict[str, Any] = {"epoch": 1, "texts": "packed"}

    def grow(number: int) -> None:
        state.update((f"{number}-{of_many}", value) for of_many in range(20))

    assert "state: " in said(grow, lambda: held(state=state))


def test_a_series_that_is_new_is_seen_and_other_values_are_not() -> None:
    text = ['# HELP of "text"', 'steps_total{job="a b"} 3.0']
    assert "series: " in said(
        lambda number: text.append(f'steps_total{{job="{number}"}} 1.0'),
        lambda: held(series=series_of("\n".join(text))),
    )
    assert series_of("a 1.0") == series_of("a 2.0") != series_of("b 1.0")


def test_tensors_that_stay_are_seen_and_views_of_one_count_once() -> None:
    tensor, views = torch.zeros(100), []
    before = held()
    views.append(tensor[:50])
    assert before.differences(held()) == []
    assert "tensors: " in said(lambda _: views.append(torch.zeros(10)), held)


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


def test_a_step_that_walks_through_all_steps_so_far_is_seen() -> None:
    walked: list[int] = []

    def turn() -> int:
        walked.extend(range(20_000))
        return int(sum(walked) > 0)

    with pytest.raises(AssertionError, match="CPU of this thread a step: "):
        soak(turn, held, turns=32, warm=2)


@pytest.mark.parametrize(("last", "is_said"), [(1.0, False), (1.5, False), (1.6, True)])
def test_a_step_may_cost_half_more_and_some_turns_anything(last: float, is_said: bool) -> None:
    costs = [1.0] * 25 + [last] * 25
    costs[3] = costs[-2] = 100.0
    found = dearer([{"a thread": each, "a process": 2.0} for each in costs])
    assert found == ["CPU of a thread a step: 1 units, then 1.6"] * is_said
