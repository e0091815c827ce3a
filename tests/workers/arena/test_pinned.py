"""Pinned slots: written again only when the device has read them. The device is a simulated one."""

import gc
import os
import threading
from pathlib import Path

import pytest
import torch
import torch.utils.data as torch_data

from counterpoise import DataLoader
from counterpoise.workers.arena import pinned
from counterpoise.workers.arena.pinned import PinnedSlots
from counterpoise.workers.arena.queue import ArenaQueue


class SimulatedEvent:
    """Has passed when the device has done what it had to do before it."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self._device = device
        self._number = device.asked
        device.asked += 1

    def query(self) -> bool:
        return self._device.done > self._number


class SimulatedDevice:
    """Counts events that were recorded, and has passed the first `done` of them."""

    def __init__(self, why_not: str = "") -> None:
        self.registered: dict[int, int] = {}
        self.times_registered = 0
        self.asked = self.done = self.waits = 0
        self.capturing = False
        self.threads: set[int] = set()
        self._why_not = why_not

    def register(self, address: int, size: int) -> str:
        assert address not in self.registered
        self.times_registered += 1
        if not self._why_not:
            self.registered[address] = size
        return self._why_not

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def record(self) -> SimulatedEvent:
        assert not self.capturing
        self.threads.add(threading.get_ident())
        return SimulatedEvent(self)

    def is_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        assert not self.capturing
        self.waits += 1
        self.done = self.asked


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice()


class Line:
    """A queue with one process as both ends, whose received slots are pinned."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.pinned = PinnedSlots(device)
        self.queue = ArenaQueue(self.pinned)

    def send(self, value: int) -> torch.Tensor:
        """Send a tensor full of a value, and return what is received, as a trainer does."""
        self.queue.put(torch.full((50_000,), value, dtype=torch.uint8))
        self.pinned.settle()
        found: torch.Tensor = self.queue.get(timeout=5)
        assert found.eq(value).all()
        return found

    def close(self) -> None:
        """End the line, and look for what is left."""
        self.queue.close()
        del self.queue, self.pinned
        gc.collect()


def test_a_slot_is_registered_once_and_let_go_with_its_memory(device: SimulatedDevice) -> None:
    line = Line(device)
    for value in range(40):
        line.send(value)
        device.done = device.asked
    assert device.times_registered == len(device.registered) <= 8
    line.close()
    assert not device.registered


def test_nothing_is_written_where_the_device_has_not_read(device: SimulatedDevice) -> None:
    """Memory stays as it was until the event behind it has passed, however long that takes."""
    line = Line(device)
    addresses = [line.send(value).data_ptr() for value in range(12)]
    assert len(set(addresses)) == 12, "no event has passed"
    device.done = device.asked
    for value in range(12):
        assert line.send(value).data_ptr() in device.registered
    assert device.times_registered < 24, "slots came back"
    line.close()


def test_an_event_is_recorded_after_another_batch_was_asked_for(device: SimulatedDevice) -> None:
    """A copy on a stream of its own is behind the main stream's wait for it by then."""
    line = Line(device)
    line.send(1)  # gone at once
    line.send(2)
    assert device.asked == 0
    line.send(3)
    assert device.asked == 1
    line.close()


def test_a_batch_that_is_kept_needs_no_event(device: SimulatedDevice) -> None:
    line = Line(device)
    kept = [line.send(value) for value in range(6)]
    assert device.asked == 0
    for value, tensor in enumerate(kept):
        assert tensor.eq(value).all()
    del kept, tensor
    line.close()
    assert device.waits == 1, "the device may still read what was let go last"


def test_no_event_is_touched_while_a_graph_is_captured(device: SimulatedDevice) -> None:
    line = Line(device)
    line.send(1)
    line.send(2)
    device.capturing = True
    for value in range(5):
        line.send(value)
    assert device.asked == 0
    device.capturing = False
    for value in range(3):
        line.send(value)
    assert device.asked > 0
    line.close()


def test_memory_of_a_loader_that_ends_within_a_capture_is_never_unmapped(
    device: SimulatedDevice,
) -> None:
    line = Line(device)
    line.send(1)
    device.capturing = True
    line.close()
    assert device.waits == 0
    assert device.registered
    device.capturing = False
    device.synchronize()
    pinned._kept.clear()
    gc.collect()
    assert not device.registered


def test_batches_that_cannot_be_pinned_are_said_once_and_come_all_the_same() -> None:
    line = Line(SimulatedDevice("no more locked memory"))
    with pytest.warns(UserWarning, match="no more locked memory") as said:
        found = [line.send(value) for value in range(10)]
    assert len(said) == 1
    assert len(found) == 10
    del found
    line.close()


def test_a_forked_child_waits_for_no_device(device: SimulatedDevice) -> None:
    line = Line(device)
    line.send(1)
    pid = os.fork()
    if pid == 0:
        line.close()
        os._exit(device.waits)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    line.close()
    assert device.waits == 1


class Pictures(torch_data.Dataset[torch.Tensor]):
    """Tensors that lie in slots."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((20_000,), index, dtype=torch.int32)


def test_a_loader_records_events_in_the_thread_that_asks(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches of two epochs, with workers that stay; the device is always behind."""
    monkeypatch.setattr(
        "counterpoise.loader.plain.arguments.make_pinned_slots", lambda: PinnedSlots(device)
    )
    loader = DataLoader(
        Pictures(), 4, num_workers=2, pin_memory=True, transport="pinned", persistent_workers=True
    )
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert batch[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
            assert batch.untyped_storage().data_ptr() in device.registered
            device.done = max(0, device.asked - 2)
    del batch
    assert device.times_registered < 24, "slots are used again"
    assert device.threads == {threading.get_ident()}
    loader.close()
    del loader
    gc.collect()
    assert not device.registered
    assert "memfd:counterpoise" not in Path("/proc/self/maps").read_text()


def test_without_a_device_batches_come_unpinned_and_it_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    loader = DataLoader(Pictures(), 4, num_workers=1, pin_memory=True, transport="pinned")
    with pytest.warns(UserWarning, match="CUDA"):
        batches = list(loader)
    assert [int(batch[0, 0]) for batch in batches] == list(range(0, 48, 4))


@pytest.mark.parametrize(
    "others", [{}, {"pin_memory": True, "balance": "fixed", "shuffle": False}], ids=str
)
def test_it_is_refused_where_it_would_pin_nothing(others: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="pin_memory=True and no balance"):
        DataLoader(Pictures(), 4, num_workers=1, transport="pinned", **others)  # type: ignore[arg-type]
