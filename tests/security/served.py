"""A balancer in a process of its own, an honest job beside it, and peers with hostile messages.

One trial is a whole honest job while some hundred hostile messages are sent. It must deliver what
it delivers undisturbed; the balancer must be alive, and its memory bounded. Messages are mutations
of recorded ones, useless ones, ZeroMQ's own commands, and bytes that are no protocol; what would
make a stranger a worker or a rank is left out, since without keys that is nobody's right to refuse.
"""

import contextlib
import hashlib
import random
import select
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterpoise.balancer.job.messages import SentFrames
from counterpoise.balancer.parties.messages import LeaveJob, TrainerBeat
from counterpoise.balancer.pool.messages import PoolBeat
from counterpoise.balancer.protocol.messages import ListJobs
from counterpoise.balancer.protocol.status_messages import GetStatus
from counterpoise.balancer.transport.wire import encode
from counterpoise.loader import DataLoader, RemoteDataset
from counterpoise.tools.demo.data import ensure_demo_data
from tests.forking.popen import Popen
from tests.security import raw_zmtp
from tests.security.hostile import Mutator, Wired, corpus, introduces

LIMIT_S = 30
SAMPLES = 24
SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}
MESSAGES = 1000
# Above what a balancer with this job needs, far below what a trial's messages would add up to.
MOST_BYTES = 600 << 20
USELESS = (
    ListJobs(),
    GetStatus(),
    TrainerBeat(1, True),
    PoolBeat(0, -1, False, ((1, 1),)),
    LeaveJob(),
    SentFrames(1, 1),
)
COMMAND = "from counterpoise.tools.cli import main; main({})"


@dataclass
class ServedJob:
    """A served balancer and its worker; `run` is an honest job, `digest` what it delivers."""

    folder: Path
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = Path(ensure_demo_data(self.folder / "data", samples=SAMPLES, shards=1)).parent
        program = COMMAND.format(["balancer", "--listen", "tcp://127.0.0.1:0"])
        self.process = Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        self.worker: Any = None
        try:
            self.address = self._wait_for_address()
            threading.Thread(target=self._drain, daemon=True).start()
            program = COMMAND.format(["worker", self.address, "--root", str(self.root)])
            self.worker = Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
            self.digest = self.run()
        except BaseException:
            self.close()
            raise

    def run(self, timeout_s: float = LIMIT_S) -> str:
        """Run an honest job, and return the digest of what it was given."""
        loader = DataLoader(
            RemoteDataset("*.tar", arguments=SMALL), balance="fixed", batch_size=2, shuffle=True,
            virtual_ranks=2, collate_fn=list, timeout=timeout_s, balancer=self.address,
        )  # fmt: skip
        given = hashlib.sha256()
        for batch in loader:
            for sample in batch:
                given.update(sample["input_ids"].tobytes() + sample["pixel_values"].tobytes())
        loader.close()
        return given.hexdigest()

    def resident_bytes(self) -> int:
        """Return the balancer's memory in bytes; 0 if it has ended."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) << 10
        return 0

    def kill(self) -> None:
        """End the worker and the balancer, not waited for: also where this process ends."""
        for process in filter(None, (self.process, self.worker)):
            process.kill()

    def close(self) -> None:
        """End the worker and the balancer."""
        self.kill()
        for process in filter(None, (self.process, self.worker)):
            process.wait()

    def _wait_for_address(self) -> str:
        stream: Any = self.process.stderr
        for line in stream:
            self.lines.append(line)
            if "listening on " in line:
                return line.partition("listening on ")[2].partition(";")[0]
        raise RuntimeError(f"the balancer did not start: {self.lines}")

    def _drain(self) -> None:
        stream: Any = self.process.stderr
        for line in stream:
            self.lines = [*self.lines[-50:], line]


class Attacker:
    """Sends hostile messages over connections of its own, as the seed says."""

    def __init__(self, address: str, draw: random.Random) -> None:
        self.address = address
        self.draw = draw
        self.mutator = Mutator(recorded(), draw.getrandbits(32))
        self.sent = 0
        self.connections = 0

    def attack(self, messages: int) -> None:
        """Send so many messages, over as many connections as that takes."""
        while self.sent < messages:
            self.connections += 1
            with contextlib.suppress(OSError):
                self._use_connection(min(messages - self.sent, self.draw.choice((5, 50, 500))))

    def _use_connection(self, messages: int) -> None:
        name = b"" if self.draw.random() < 0.1 else self.draw.randbytes(6).hex().encode()
        peer = raw_zmtp.connect(self.address, name)
        try:
            for _ in range(messages):
                readable, writable, _ = select.select([peer], [peer], [], LIMIT_S)
                if (readable and not peer.recv(1 << 16)) or not writable:
                    return  # it is closed, or not read any more
                peer.sendall(self._message())
                self.sent += 1
        finally:
            if self.draw.random() < 0.5:
                raw_zmtp.reset(peer)
            peer.close()

    def _message(self) -> bytes:
        kind = self.draw.random()
        if kind < 0.05:
            return raw_zmtp.PING
        if kind < 0.06:
            return self.draw.randbytes(self.draw.randrange(1, 40))  # no ZMTP: the connection ends
        if kind < 0.2:
            message = self.draw.choice(USELESS)
            payload = [self.draw.randbytes(64)] if isinstance(message, SentFrames) else []
            return multipart([encode(message), *payload])
        header, payloads = self.mutator.frame()
        if introduces(Wired(b"", header, tuple(payloads))):
            return raw_zmtp.PING
        return multipart([header, *payloads])


def multipart(frames: list[bytes]) -> bytes:
    """Return the frames of one message as they are on the wire."""
    *front, last = frames
    return b"".join(raw_zmtp.frame(each, more=True) for each in front) + raw_zmtp.frame(last)


_corpus: list[Wired] = []


def recorded() -> list[Wired]:
    """Return what a balancer hears in an undisturbed run; it is made once."""
    if not _corpus:
        _corpus.extend(corpus())
    return _corpus


def try_once(job: ServedJob, draw: random.Random, messages: int = MESSAGES) -> tuple[bool, str]:
    """Run an honest job beside an attack; return whether all is well, and what happened."""
    attacker = Attacker(job.address, draw)
    attack = threading.Thread(target=attacker.attack, args=(messages,), daemon=True)
    attack.start()
    try:
        digest = job.run() if job.process.poll() is None else ""
    except Exception as error:
        digest = f"{type(error).__name__}: {error}"
    attack.join(LIMIT_S)
    resident = job.resident_bytes()
    found = f"{attacker.sent} messages over {attacker.connections} connections, {resident >> 20} MB"
    if job.process.poll() is not None:
        return False, f"the balancer ended with {job.process.returncode}: {job.lines[-3:]}"
    if attack.is_alive():
        return False, f"the attack hangs: {found}"
    if digest != job.digest:
        return False, f"the job was given {digest:.300}: {found}"
    return resident < MOST_BYTES, found
