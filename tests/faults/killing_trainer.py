"""Trains from shared memory while a process of its loader, or the trainer itself, is killed.

Where it lives on, it writes down in NOTES what was wrong: a batch that differs, a process that is
not missed, memory or a descriptor that it still has when the loader is closed.
"""

import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise import Balance, DataLoader, OnError

from .leftovers import descriptors, memory_of, more_descriptors

PARTIES = ("trainer", "template", "worker", "plain trainer", "plain worker")
SAMPLES, BATCH, WORKERS = 64, 4, 2
# A kill comes at most this long after the batch that it is drawn for.
LATE_S = 0.02
# What a sample takes a worker, so that an epoch is long enough to be hit within.
DECODE_S = 0.002


class Pictures:
    """Samples of 50 to 150 KB, each of its own bytes."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(DECODE_S)
        tokens = np.arange(3 + index % 5)
        tiles = np.full((1 + index % 3, 3, 128, 128), index, np.uint8)
        texts = {"input_ids": tokens, "labels": tokens}
        return {**texts, "pixel_values": tiles, "tiles_per_image": np.array([len(tiles)])}


class Tensors(Pictures):
    """Samples of one shape, for torch's collate function."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(DECODE_S)
        return torch.full((50_000,), index, dtype=torch.uint8)


def main(words: list[str]) -> None:
    """Train with the arguments PARTY SEED KILLS NOTES."""
    party, seed, kills, notes = words
    source, wrong = random.Random(f"{party} {seed}"), list[str]()
    expected = [_digest(batch) for batch in _loader(party, workers=0)]
    if party.endswith("trainer"):
        _die(party, source, Path(notes))
    for number in range(int(kills)):
        opened, memory = descriptors(os.getpid()), set(memory_of("self"))
        found = _epoch(party, source, expected)
        gc.collect()
        # The watching of a child, or of a socket, ends a moment after it.
        # torch raises a plain worker's death at any moment: a descriptor may be lost then.
        counts = party != "plain worker"
        found += _settled(partial(_left, opened, memory, counts))
        wrong += [f"kill {number}: {each}" for each in found]
    Path(notes).write_text(json.dumps({"memory": [], "wrong": wrong}))


def _loader(party: str, workers: int = WORKERS) -> Any:
    if party.startswith("plain"):
        return DataLoader(Tensors(), BATCH, num_workers=workers)
    costs = {"tokens": [1 + n % 7 for n in range(SAMPLES)]}
    balance = Balance("fixed", layout="packed")
    data: Any = Pictures()
    return DataLoader(
        data, BATCH, True, num_workers=workers, balance=balance, cost=costs,
        on_error=OnError(worker_restarts=1),
    )  # fmt: skip


def _die(party: str, source: random.Random, notes: Path) -> None:
    """Train until this process is killed, by itself."""
    loader, at, late = _loader(party), source.randrange(SAMPLES // BATCH), source.random()
    kept = []
    while True:
        for number, batch in enumerate(loader):
            kept.append(batch)
            if number == at:
                memory = sorted(memory_of("self"))
                wrong = [] if memory else ["no batch lies in shared memory"]
                notes.write_text(json.dumps({"memory": memory, "wrong": wrong}))
                victim = [os.pidfd_open(os.getpid())]
                threading.Thread(target=_kill, args=(victim, late * LATE_S)).start()


def _epoch(party: str, source: random.Random, expected: list[str]) -> list[str]:
    """Kill a party within an epoch; return what was wrong with the batches."""
    loader, at, late = _loader(party), source.randrange(len(expected)), source.random()
    batches: Iterator[Any] = iter(loader)
    kept, found, error, killer = None, list[str](), "", None
    wrong = []
    try:
        for number, batch in enumerate(batches):
            found.append(_digest(batch))
            kept = batch if kept is None else kept
            if number == at:
                wrong = [] if memory_of("self") else ["no batch lies in shared memory"]
                victims = _victims(party, loader, batches)
                one = [os.pidfd_open(source.choice(victims))]
                killer = threading.Thread(target=_kill, args=(one, late * LATE_S))
                killer.start()
    except RuntimeError as raised:
        error = str(raised)
    if killer is not None:
        killer.join()
    if found != expected[: len(found)] or (kept is not None and _digest(kept) != expected[0]):
        wrong.append("a batch differs")
    if not error and len(found) < len(expected):
        wrong.append(f"an epoch ended after {len(found)} of {len(expected)} batches")
    if error and party in ("worker", "template"):
        wrong.append(f"a {party} was missed: {error:.300}")
    batches = iter(())
    loader.close()
    return wrong


def _victims(party: str, loader: Any, batches: Any) -> list[int]:
    """Return the processes of a party that can be killed."""
    if party.startswith("plain"):
        return [worker.pid for worker in batches._workers]
    tasks = loader._balanced._connection._tasks
    if party == "template":
        return [tasks._replacer.template.process.pid]
    return [worker.pid for worker in tasks._workers]


def _kill(victim: list[int], late_s: float) -> None:
    time.sleep(late_s)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(victim[0], signal.SIGKILL)
    os.close(victim[0])


def _left(open_before: list[str], memory_before: set[int], counts: bool) -> list[str]:
    """Return what this process has beyond what it had before; counts: descriptors, too."""
    gc.collect()
    more = set(memory_of("self")) - memory_before
    left = [f"{len(more)} memory files are still mapped or open"] if more else []
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    running = [f"process {pid} still runs" for pid in children]
    more_open = more_descriptors(os.getpid(), open_before, "the trainer") if counts else []
    return [*left, *running, *more_open]


def _settled(look: Any) -> list[str]:
    deadline = time.monotonic() + 5.0
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    found: list[str] = left
    return found


def _digest(batch: Any) -> str:
    parts = [batch] if isinstance(batch, torch.Tensor) else [batch[name] for name in sorted(batch)]
    seen = hashlib.blake2b(digest_size=12)
    for part in parts:
        seen.update(np.asarray(part).tobytes())
    return seen.hexdigest()
