"""Runs a cluster of real processes over tcp, and kills, stops and disconnects them."""

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from . import leftovers
from .child_process import ChildProcess
from .epoch import RANKS, WORKERS
from .proxy import WAYS, ProxyNetwork

END_S = 30.0
# Short, so that a stopped worker finds that it was given up.
HEARTBEAT_TIMEOUT_S = 2.5
TRAINERS = tuple(f"rank {rank}" for rank in range(RANKS))
PEERS = (*[f"worker {slot}" for slot in range(WORKERS)], *TRAINERS)
PROCESSES = ("balancer", *PEERS)

Line = tuple[int, object]


class Cluster:
    """A balancer, workers and ranks; `close` ends those that still run."""

    def __init__(
        self, folder: Path, shards: Path, step_s: float, temporary: Path, mark: str
    ) -> None:
        """`folder` is new, for logs and notes; each step takes a rank `step_s`."""
        folder.mkdir()
        self.folder = folder
        self.redelivered: list[tuple[int, Line]] = []
        self.history: list[str] = []
        self._started = time.monotonic()
        self._marked = temporary, mark
        self._shards = shards
        self._step_s = step_s
        self._running: dict[str, ChildProcess] = {}
        # Bound while the cluster lives: nobody else gets the port while the balancer is down.
        self._bound = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.port: int = self._bound.getsockname()[1]
        self.network = ProxyNetwork(PEERS, self.port)

    def start_all(self) -> None:
        """Start every process."""
        for name in PROCESSES:
            self._start(name)

    def kill(self, name: str, down_s: float) -> None:
        """Kill a process at once, and start it again after `down_s`.

        All ranks are killed together, as torch elastic restarts a whole job.
        """
        self._note(f"{name}: killed, back in {down_s:.2f} s")
        together = TRAINERS if name in TRAINERS else (name,)
        for each in sorted(together, key=lambda each: each != name):
            self._running[each].kill(END_S)
        self.network.pump(down_s)
        if name in TRAINERS:
            self._align_notes()
        for each in together:
            self._start(each)

    def hold(self, name: str, seconds: float) -> None:
        """Stop a process for a while."""
        self._note(f"{name}: stopped for {seconds:.2f} s")
        self._running[name].send(signal.SIGSTOP)
        self.network.pump(seconds)
        self._running[name].send(signal.SIGCONT)

    def cut(self, name: str, seconds: float) -> None:
        """End a peer's connections; it can make new ones after `seconds`."""
        self._note(f"{name}: cut off for {seconds:.2f} s")
        cable = self.network.cables[name]
        cable.pulled = True
        cable.cut()
        self.network.pump(seconds)
        cable.pulled = False

    def delay(self, name: str, way: str, seconds: float, lost: bool) -> None:
        """Hold back one direction of a peer's connections; afterwards deliver it, or lose it."""
        self._note(f"{name}: {way} late by {seconds:.2f} s{', then lost' if lost else ''}")
        cable = self.network.cables[name]
        cable.late = {way} & set(WAYS)
        self.network.pump(seconds)
        if lost:
            cable.cut()
        cable.late = set()

    def steps_noted(self) -> int:
        """Return how many steps the rank that is ahead has written down."""
        return max(len(self.lines(rank)) for rank in range(RANKS))

    def over(self) -> bool:
        """Return whether some rank has ended."""
        return any(self._running[name].ended() for name in TRAINERS)

    def wait(self, done: Callable[[], bool], deadline: float) -> None:
        """Forward the network until `done()`, or until `deadline` by time.monotonic()."""
        self.network.pump(deadline - time.monotonic(), done)

    def finished(self) -> bool:
        """Return whether all ranks have ended."""
        return all(self._running[name].ended() for name in TRAINERS)

    def lines(self, rank: int) -> list[Line]:
        """Return a rank's notes, (step, batches); an incomplete last line is left out."""
        path = self._notes(rank)
        text = path.read_text() if path.exists() else ""
        return [tuple(json.loads(line)[:2]) for line in _whole(text)]

    def close(self) -> list[str]:
        """End every process; return one line for each that had to be killed."""
        for child in self._running.values():
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        not_ended = []
        for name, child in self._running.items():
            self.network.pump(max(0.0, deadline - time.monotonic()), child.ended)
            if not child.ended():
                not_ended.append(f"{name} did not end within {END_S:.0f} s")
                child.kill(END_S)
        self._running.clear()
        self.network.close()
        self._bound.close()
        return not_ended

    def errors(self) -> list[str]:
        """Return the last line of each failed rank's log, and what the other ranks had open."""
        errors: list[str] = []
        for rank in range(RANKS):
            try:
                errors += json.loads((self.folder / f"rank-{rank}.end").read_text())
            except FileNotFoundError:
                log = self.folder / f"rank-{rank}.log"
                last = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
                errors.append(f"rank {rank} failed: {last[-1] if last else 'its log is empty'}")
        return errors

    def leftovers(self) -> list[str]:
        """Return the sockets that still listen on the balancer's port."""
        return leftovers.listeners(self.port)

    def _start(self, name: str) -> None:
        kind, _, number = name.partition(" ")
        log = self.folder / f"{name.replace(' ', '-')}.log"
        if name == "balancer":
            words = ["balancer", "--listen", f"tcp://127.0.0.1:{self.port}"]
            words += ["--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)]
        else:
            address = f"tcp://127.0.0.1:{self.network.cables[name].port}"
            if kind == "rank":
                words = [
                    "tests.faults.trainer", address, str(self.folder), number, str(self._step_s),
                ]  # fmt: skip
            else:
                words = ["worker", address, "--root", str(self._shards)]
                words += ["--cache", str(log.with_suffix(".cache"))]
        self._running[name] = ChildProcess(words, log, *self._marked)

    def _note(self, event: str) -> None:
        steps = [len(self.lines(rank)) for rank in range(RANKS)]
        self.history.append(f"{time.monotonic() - self._started:.2f} s, steps {steps}: {event}")

    def _notes(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.jsonl"

    def _align_notes(self) -> None:
        """Cut all ranks' notes to the length of the shortest, from where they will resume."""
        texts = [
            _whole(self._notes(rank).read_text()) if self._notes(rank).exists() else []
            for rank in range(RANKS)
        ]
        common = min(map(len, texts))
        for rank, lines in enumerate(texts):
            self.redelivered += [(rank, tuple(json.loads(line)[:2])) for line in lines[common:]]
            self._notes(rank).write_text("".join(line + "\n" for line in lines[:common]))
            with contextlib.suppress(FileNotFoundError):
                (self.folder / f"rank-{rank}.end").unlink()


def _whole(text: str) -> list[str]:
    return text.split("\n")[:-1]
