"""The queue: objects in order, tensors that nobody overwrites while they are looked at."""

import gc
import os
import queue
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

from counterpoise.workers.arena import views as arena_views
from counterpoise.workers.arena.memory import PAGE, Mapping, make_memory
from counterpoise.workers.arena.queue import ArenaQueue
from counterpoise.workers.arena.views import watched_view
from counterpoise.workers.arena.worker import Beginning, this_worker


def mapped_slots() -> int:
    """Return the number of arena mappings in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:counterpoise")


def open_files() -> int:
    """Return the number of this process' descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


def in_child(check: Callable[[], bool]) -> bool:
    """Return what `check` returns in a forked child."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if check() else 1)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_never_changes(seed: int) -> None:
    """Slots come back and are written again, and no tensor that is still there changes."""
    draw, line, kept = random.Random(seed), ArenaQueue(), []
    for number in range(120):
        sizes = [int(2 ** draw.uniform(8, 18)) for _ in range(draw.randrange(1, 4))]
        sent = [torch.full((size,), (number + at) % 251, dtype=torch.uint8)
                for at, size in enumerate(sizes)]  # fmt: skip
        line.put((number, sent))
        found, tensors = line.get(timeout=5)
        assert found == number
        kept += [(t, (number + at) % 251) for at, t in enumerate(tensors) if draw.random() < 0.4]
        del tensors
        kept[:] = [each for each in kept if draw.random() < 0.8]
        for tensor, value in kept:
            assert int(tensor.min()) == int(tensor.max()) == value
    line.close()


def test_equal_batches_use_few_slots_and_no_descriptors() -> None:
    before, line = open_files(), ArenaQueue()
    slots = mapped_slots()
    most = 0
    for _ in range(50):
        line.put(torch.zeros(100_000))
        assert line.get(timeout=5).sum() == 0
        most = max(most, mapped_slots() - slots)
    assert most <= 2 * 3  # mapped twice here: one process is both sides
    line.close()
    del line
    gc.collect()
    assert open_files() == before
    assert mapped_slots() == slots


def test_a_queue_that_nobody_closes_leaves_no_descriptor() -> None:
    """As when a worker's death is raised within torch's own clean-up."""
    before, line = open_files(), ArenaQueue()
    line.put(torch.ones(100_000))
    assert line.get(timeout=5).sum() == 100_000
    del line
    gc.collect()
    assert open_files() == before


def test_labels_that_are_kept_do_not_keep_pictures() -> None:
    line, alive = ArenaQueue(), len(arena_views._alive)
    line.put({"labels": torch.arange(256), "pictures": torch.zeros(256, 1000)})
    labels = line.get(timeout=5)["labels"]
    assert len(arena_views._alive) == alive
    assert labels[255] == 255


def test_a_tensor_outlives_its_queue() -> None:
    line = ArenaQueue()
    line.put(torch.full((50_000,), 7.0))
    found = line.get(timeout=5)
    line.close()
    del line
    gc.collect()
    found += 1
    assert found.eq(8).all()


@pytest.mark.parametrize(
    "derive",
    [
        lambda buffer: torch.frombuffer(buffer, dtype=torch.uint8)[5:].view(-1, 1),
        lambda buffer: np.frombuffer(buffer, np.uint8)[2:][1:],
        lambda buffer: np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)[1:],
        lambda buffer: memoryview(memoryview(buffer)[3:])[1:],
        lambda buffer: torch.frombuffer(buffer, dtype=torch.uint8).numpy()[1:],
    ],
)
def test_anything_made_of_a_view_keeps_it(derive: Callable[[object], object]) -> None:
    descriptor, ended = make_memory(PAGE), []
    mapping = Mapping(descriptor, PAGE)
    os.close(descriptor)
    derived = derive(watched_view(mapping, 100, ended.append))
    assert not ended
    del derived
    assert ended == [False]


# The names of a module that something has are cleared in their order: what `ended` says it with is
# gone before the view.
OUTLIVING = """
import sys
from counterpoise.workers.arena.memory import PAGE, Mapping, make_memory
from counterpoise.workers.arena.views import watched_view
sys.kept = sys.modules["__main__"]
said = []
view = watched_view(Mapping(make_memory(PAGE), PAGE), PAGE, lambda inherited: said.append(1))
"""


def test_a_view_that_ends_with_the_interpreter_says_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", OUTLIVING], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_child_reads_what_its_parent_had_and_frees_nothing() -> None:
    line = ArenaQueue()
    line.put(torch.full((50_000,), 3.0))
    found = line.get(timeout=5)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)  # when the parent has freed the slot and filled others
        os._exit(0 if found.eq(3).all() else 1)
    del found
    for number in range(10):
        line.put(torch.full((50_000,), float(number)))
        assert line.get(timeout=5).eq(number).all()
    os.write(writer, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    line.close()
    os.close(reader)
    os.close(writer)


def test_a_child_does_not_get_slots_that_nobody_looks_at() -> None:
    line, before = ArenaQueue(), mapped_slots()
    line.put(torch.zeros(50_000))
    line.get(timeout=5)
    assert mapped_slots() > before
    assert in_child(lambda: mapped_slots() <= before)
    line.close()


def test_default_collate_stacks_large_batches_into_slots() -> None:
    def check() -> bool:
        Beginning(Exception, None)(0)
        worker, rows = this_worker(), [torch.full((9_000,), 2.0)] * 4
        assert worker is not None
        found = torch_data.default_collate([{"x": row, "y": row[:3]} for row in rows])
        in_slot = worker.sender.find_slot(found["x"].data_ptr()) is not None
        small = worker.sender.find_slot(found["y"].data_ptr()) is None
        return in_slot and small and torch.equal(found["x"], torch.stack(rows))

    assert in_child(check)


def test_a_worker_uses_freed_memory_again_and_returns_it_when_no_task_comes() -> None:
    size, pages = 8 << 20, (8 << 20) // PAGE

    def new_pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytearray(size)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def resident() -> int:  # huge pages are few, and as large
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    def check() -> bool:
        Beginning(Exception, None)(0)
        new_pages()
        again, line, before = new_pages(), ArenaQueue(), resident()
        with pytest.raises(queue.Empty):
            line.get(timeout=0)
        return again < pages // 8 and before - resident() > size // 2

    assert in_child(check)


def test_tasks_that_there_is_no_room_for_are_sent_later_in_order() -> None:
    line = ArenaQueue()
    for number in range(300):
        line.put((number, "x" * 9_000))
    assert [line.get(timeout=5)[0] for _ in range(300)] == list(range(300))
    with pytest.raises(queue.Empty):
        line.get(timeout=0)
    line.close()


@pytest.mark.parametrize(
    "names",
    [[3, 1 << 80, -1], ["a/b.jpg", ""], [], [True, 2], [(0, 1)], [torch.tensor(4)], ["x" * 20_000]],
)
def test_tasks_of_any_names_arrive_as_they_were_sent(names: list[Any]) -> None:
    line = ArenaQueue()
    for task in ((7, names), (8, tuple(names)), (9, None)):
        line.put(task)
        found = line.get(timeout=5)
        assert found == task
        assert type(found[1]) is type(task[1])
        assert [*map(type, found[1] or ())] == [*map(type, task[1] or ())]
    line.close()


def test_long_pickles_and_many_small_tensors_arrive() -> None:
    line = ArenaQueue()
    sent: list[Any] = [["word"] * 30_000, [torch.full((3,), n) for n in range(2_000)]]
    for thing in sent:
        line.put(thing)
    words, tensors = line.get(timeout=5), line.get(timeout=5)
    assert words == sent[0]
    assert all(torch.equal(a, b) for a, b in zip(tensors, sent[1], strict=True))
    line.close()
