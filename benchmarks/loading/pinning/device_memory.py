"""Registration of the arena's memory with CUDA, and copies from it to the device."""

import os
import time
from typing import Any

from rich.table import Table

from counterpoise.tools.console.spread import spread

_SIZES = tuple(mebibytes << 20 for mebibytes in (16, 128, 1024))
_COPIED = 128 << 20
_WAYS = ("slot, registered", "pin_memory()", "slot, as it is")


def memory_figures(rounds: int) -> dict[str, Any]:
    """Return seconds to register a GB, by size, and GB/s to the device, by memory; in turns."""
    return {
        "register_s_per_gb": {str(size): spread(_register(size, rounds)) for size in _SIZES},
        "gb_per_s": {way: spread(found) for way, found in _copies(rounds).items()},
    }


def _slot(size: int) -> Any:
    """Return a mapping as the arena makes them for a slot."""
    from counterpoise.workers.arena.memory import Mapping, make_memory

    descriptor = make_memory(size)
    try:
        return Mapping(descriptor, size)
    finally:
        os.close(descriptor)


def _register(size: int, rounds: int) -> list[float]:
    """Return the seconds a GB that registering new slots of a size took."""
    from counterpoise.workers.arena.pinned import CudaDevice

    device, found = CudaDevice(), []
    for _ in range(rounds):
        slot = _slot(size)
        begun = time.perf_counter()
        why_not = device.register(slot.address, size)
        found.append(1e9 * (time.perf_counter() - begun) / size)
        if why_not:
            raise ValueError(f"{size} bytes cannot be registered: {why_not}")
        slot.unpin = device.unregister
    return found


def _copies(rounds: int) -> dict[str, list[float]]:
    """Return GB/s of copies to the device, for each kind of memory."""
    import torch

    from counterpoise.workers.arena.pinned import CudaDevice

    device, slots = CudaDevice(), [_slot(_COPIED), _slot(_COPIED)]
    tensors = [torch.frombuffer(slot.bytes(_COPIED), dtype=torch.uint8) for slot in slots]
    why_not = device.register(slots[0].address, _COPIED)
    if why_not:
        raise ValueError(f"{_COPIED} bytes cannot be registered: {why_not}")
    slots[0].unpin = device.unregister
    if not tensors[0].is_pinned():
        raise ValueError("torch does not take registered memory for pinned")
    sources = dict(zip(_WAYS, (tensors[0], tensors[1].pin_memory(), tensors[1]), strict=True))
    target = torch.empty(_COPIED, dtype=torch.uint8, device="cuda")
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(rounds + 1):  # the first round warms up
        for way, source in sources.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            found[way].append(_COPIED / (time.perf_counter() - begun) / 1e9)
    return {way: rates[1:] for way, rates in found.items()}


def memory_table(figures: dict[str, Any]) -> Table:
    """Return the figures as a table."""
    made = Table(title="memory of slots and the device")
    for column in ("what", "median", "range"):
        made.add_column(column, justify="right")
    rows = {
        f"register {int(size) >> 20} MiB, s a GB": found
        for size, found in figures["register_s_per_gb"].items()
    }
    rows |= {f"copy from {way}, GB/s": found for way, found in figures["gb_per_s"].items()}
    for what, found in rows.items():
        low, high = f"{found['low']:.3g}", f"{found['high']:.3g}"
        made.add_row(what, f"{found['median']:.3g}", f"{low} to {high}")
    return made
