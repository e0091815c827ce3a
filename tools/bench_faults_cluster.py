"""A cluster of real processes over tcp on this machine, to be killed and stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = "from counterpoise.tools.cli import main; main()"
TRAINER = "counterpoise.tools.bench_faults_trainer"
MARK = "COUNTERPOISE_BENCH"
WORKERS = 2
END_S = 15.0
PARTIES = (*[f"worker {slot}" for slot in range(WORKERS)], "balancer", "trainer")


@dataclass(slots=True)
class Cluster:
    """A balancer, workers and a trainer; `close` ends what is left of them."""

    folder: Path
    shards: Path
    step_s: float
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    port: int = 0
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_all(self) -> None:
        """Start every party."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        for party in PARTIES:
            self.start(party)

    def start(self, party: str) -> None:
        """Start a party, or start it again."""
        address = f"tcp://127.0.0.1:{self.port}"
        log = self.folder / f"{party.replace(' ', '-')}.log"
        if party == "balancer":
            words = ["-c", COMMAND, "balancer", "--listen", address]
        elif party == "trainer":
            words = ["-m", TRAINER, address, str(self.folder)]
            words += [str(self.step_s)]
        else:
            words = ["-c", COMMAND, "worker", address, "--root", str(self.shards)]
            words += ["--cache", str(log.with_suffix(".cache"))]
        with log.open("ab") as output:
            self.running[party] = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, MARK: self.mark, "OMP_NUM_THREADS": "1"},
            )

    def kill(self, party: str) -> None:
        """Kill a party at once, whatever it does."""
        self.running[party].send_signal(signal.SIGKILL)
        self.running[party].wait()

    def hold(self, party: str, seconds: float) -> None:
        """Stop a party for a while."""
        self.running[party].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.running[party].send_signal(signal.SIGCONT)

    def steps_noted(self) -> int:
        """How many steps the trainer has noted."""
        path = self.folder / "steps.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def trainer_status(self) -> int | None:
        """Return the trainer's exit status, None while it runs."""
        return self.running["trainer"].poll()

    def close(self) -> None:
        """End every process."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        for process in self.running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def leftovers(self) -> list[str]:
        """Return the processes that live on, and the port if somebody still listens there."""
        mark = f"{MARK}={self.mark}".encode()
        found = [f"process {place.name}" for place in Path("/proc").iterdir() if _has(place, mark)]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                found.append(f"port {self.port}")
        return found


def _has(place: Path, mark: bytes) -> bool:
    try:
        return place.name.isdigit() and mark in (place / "environ").read_bytes()
    except OSError:
        return False
