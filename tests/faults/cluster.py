"""A cluster of real processes over tcp on this machine, to be killed, stopped and cut off."""

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from . import leftovers
from .nursery import Nursery, Party
from .proxy import WAYS, ProxyNetwork

RANKS, WORKERS = 2, 2
STEPS, SAMPLES_PER_STEP = 20, 8
END_S = 10.0
# How long a worker may be silent: short, so that a worker that was stopped finds itself given up.
SILENCE_S = 2.5
TRAINERS = tuple(f"rank {rank}" for rank in range(RANKS))
PEERS = (*[f"worker {slot}" for slot in range(WORKERS)], *TRAINERS)
PARTIES = ("balancer", *PEERS)

Line = tuple[int, object]


class Cluster:
    """A balancer, workers and ranks; `close` ends what is left of them."""

    def __init__(self, nursery: Nursery, folder: Path, shards: Path, step_s: float) -> None:
        """`folder` is new, for logs and notes; each step takes a rank `step_s`."""
        folder.mkdir()
        self.folder = folder
        self.given_again: list[tuple[int, Line]] = []
        self.history: list[str] = []
        self._started = time.monotonic()
        self._nursery = nursery
        self._shards = shards
        self._step_s = step_s
        self._running: dict[str, Party] = {}
        # Bound for as long as the cluster lives: nobody else is given the port while it is down.
        self._bound = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.port: int = self._bound.getsockname()[1]
        self.network = ProxyNetwork(PEERS, self.port)

    def start_all(self) -> None:
        """Start every party."""
        for party in PARTIES:
            self._start(party)

    def kill(self, party: str, down_s: float) -> None:
        """Kill a party at once, whatever it does, and start it again after so long.

        A rank takes the others with it, as a job that is started anew by torch elastic.
        """
        self._note(f"{party}: killed, back in {down_s:.2f} s")
        together = TRAINERS if party in TRAINERS else (party,)
        for each in sorted(together, key=lambda name: name != party):
            self._kill(each)
        self.network.pump(down_s)
        if party in TRAINERS:
            self._align_notes()
        for each in together:
            self._start(each)

    def hold(self, party: str, seconds: float) -> None:
        """Stop a party for a while."""
        self._note(f"{party}: stopped for {seconds:.2f} s")
        self._running[party].send(signal.SIGSTOP)
        self.network.pump(seconds)
        self._running[party].send(signal.SIGCONT)

    def cut(self, party: str, seconds: float) -> None:
        """End a peer's connections; it can make new ones after so long."""
        self._note(f"{party}: cut off for {seconds:.2f} s")
        cable = self.network.cables[party]
        cable.pulled = True
        cable.cut()
        self.network.pump(seconds)
        cable.pulled = False

    def delay(self, party: str, way: str, seconds: float, lost: bool) -> None:
        """Move nothing one way of a peer's connections for a while; then it comes, or is lost."""
        self._note(f"{party}: {way} late by {seconds:.2f} s{', then lost' if lost else ''}")
        cable = self.network.cables[party]
        cable.late = {way} & set(WAYS)
        self.network.pump(seconds)
        if lost:
            cable.cut()
        cable.late = set()

    def steps_noted(self) -> int:
        """How many steps the rank that is ahead has noted."""
        return max(len(self.lines(rank)) for rank in range(RANKS))

    def over(self) -> bool:
        """Whether some rank has ended."""
        return any(self._running[name].ended() for name in TRAINERS)

    def wait(self, done: Callable[[], bool], deadline: float) -> None:
        """Let them run until something is done, or a moment of time.monotonic() has come."""
        self.network.pump(deadline - time.monotonic(), done)

    def finished(self) -> bool:
        """Whether all ranks have ended."""
        return all(self._running[name].ended() for name in TRAINERS)

    def lines(self, rank: int) -> list[Line]:
        """Return what a rank has noted: (step, batches); a line cut short is not there."""
        path = self._notes(rank)
        text = path.read_text() if path.exists() else ""
        return [tuple(json.loads(line)[:2]) for line in _whole(text)]

    def close(self) -> list[str]:
        """End every process; return those that did not end when asked to."""
        for party in self._running.values():
            party.send(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        stubborn = []
        for name, party in self._running.items():
            self.network.pump(max(0.0, deadline - time.monotonic()), party.ended)
            if not party.ended():
                stubborn.append(f"{name} did not end within {END_S:.0f} s")
                party.send(signal.SIGKILL)
                party.ended(END_S)
            party.close()
        self._running.clear()
        self.network.close()
        self._bound.close()
        return stubborn

    def last_words(self) -> list[str]:
        """Return why ranks ended that did not end well, and what the others had open."""
        words: list[str] = []
        for rank in range(RANKS):
            try:
                words += json.loads((self.folder / f"rank-{rank}.end").read_text())
            except FileNotFoundError:
                log = self.folder / f"rank-{rank}.log"
                said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
                words.append(f"rank {rank} did not end well: {said[-1] if said else 'no word'}")
        return words

    def leftovers(self) -> list[str]:
        """Return who still listens where the balancer did."""
        return leftovers.listeners(self.port)

    def _start(self, name: str) -> None:
        kind, _, number = name.partition(" ")
        log = self.folder / f"{name.replace(' ', '-')}.log"
        if name == "balancer":
            words = ["balancer", "--listen", f"tcp://127.0.0.1:{self.port}"]
            words += ["--silence", str(SILENCE_S)]
        else:
            address = f"tcp://127.0.0.1:{self.network.cables[name].port}"
            if kind == "rank":
                words = ["trainer", address, str(self.folder), number, str(self._step_s)]
            else:
                words = ["worker", address, "--root", str(self._shards)]
                words += ["--cache", str(log.with_suffix(".cache"))]
        self._running[name] = self._nursery.start(words, log)

    def _note(self, event: str) -> None:
        steps = [len(self.lines(rank)) for rank in range(RANKS)]
        self.history.append(f"{time.monotonic() - self._started:.2f} s, steps {steps}: {event}")

    def _kill(self, name: str) -> None:
        party = self._running[name]
        party.send(signal.SIGKILL)
        party.ended(END_S)
        party.close()

    def _notes(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.jsonl"

    def _align_notes(self) -> None:
        """Let all ranks start again where the one that is farthest behind is."""
        texts = [
            _whole(self._notes(rank).read_text()) if self._notes(rank).exists() else []
            for rank in range(RANKS)
        ]
        common = min(map(len, texts))
        for rank, lines in enumerate(texts):
            self.given_again += [(rank, tuple(json.loads(line)[:2])) for line in lines[common:]]
            self._notes(rank).write_text("".join(line + "\n" for line in lines[:common]))
            with contextlib.suppress(FileNotFoundError):
                (self.folder / f"rank-{rank}.end").unlink()


def _whole(text: str) -> list[str]:
    return text.split("\n")[:-1]
