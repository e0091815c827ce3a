"""`counterpoise balancer` in a process of its own, over tcp on the loopback; its peers are here.

Counted is all CPU time of its process, ZeroMQ's threads too, and the most memory that it had.
"""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zmq

from counterpoise.balancer.transport.sockets import connect, receive_frames, send_together
from counterpoise.balancer.transport.wire import decode_all
from counterpoise.workers.processes.clean_interpreter import clean_command

from .stand_ins import StandIns

# Peers give a sign of life this often; a balancer that brings nothing for so long is stuck.
BEAT_S, STALL_S = 1.0, 60.0


class Served(StandIns):
    """Peers that are connected to a balancer over tcp."""

    def __init__(
        self, ranks: int, steps: int, samples: int, context: "zmq.Context[Any]", address: str,
        pid: int,
    ) -> None:  # fmt: skip
        super().__init__(ranks, steps, samples)
        self._pid = pid
        self._poller = zmq.Poller()
        self._sockets = {
            peer: connect(context, address, peer) for peer in (*self.workers, *self.trainers)
        }
        self._peers = {socket: peer for peer, socket in self._sockets.items()}
        for socket in self._peers:
            self._poller.register(socket, zmq.POLLIN)
        self._beaten_at = self._heard_at = time.monotonic()

    def cpu_s(self) -> float:
        """Return the CPU seconds of the balancer's process, of all its threads."""
        return time.clock_gettime(~self._pid << 3 | 2)  # Linux' number of a process' CPU clock

    def most_bytes(self) -> int:
        """Return the most memory that the balancer's process has had."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    def post(self, peer: bytes, messages: Sequence[Any]) -> None:
        """Send messages to the balancer, those together that travel together."""
        send_together(self._sockets[peer], messages)

    def turn(self) -> None:
        """Wait for messages, and do what they ask for; RuntimeError if none comes for STALL_S."""
        had, now = self.delivered, time.monotonic()
        for socket, _ in self._poller.poll(int(1000 * BEAT_S)):
            while (frames := receive_frames(socket)) is not None:
                for message in decode_all(frames[0].buffer, len(frames) - 1):
                    self.take(self._peers[socket], message)
        self.answer()
        if self.delivered > had or not self.delivered:
            self._heard_at = now
        if now > self._heard_at + STALL_S:
            raise RuntimeError(f"no sample for {STALL_S:.0f} s, after {had}")
        if now > self._beaten_at + BEAT_S:
            self._beaten_at = now
            self.join()
            for sessions in (self.workers, self.trainers):
                for peer, session in sessions.items():
                    beat = session.beat()
                    self.post(peer, beat if isinstance(beat, list) else [beat])

    def close(self) -> None:
        """Close all connections."""
        for socket in self._peers:
            socket.close(linger=0)


@contextmanager
def open_served(ranks: int, steps: int, samples: int) -> Iterator[Served]:
    """Give the peers of a balancer that has just started; it ends with the block."""
    with TemporaryDirectory() as folder, zmq.Context() as context:
        context.max_sockets = 1 << 16
        at = Path(folder) / "address"
        words = ["balancer", "--listen", "tcp://127.0.0.1:0", "--address-file", str(at)]
        command = clean_command("counterpoise.tools.cli", f"m.main({words!r})")
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not at.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the balancer ended with status {process.returncode}")
                time.sleep(0.01)
            served = Served(ranks, steps, samples, context, at.read_text().strip(), process.pid)
            try:
                yield served
            finally:
                served.close()
        finally:
            process.terminate()
            process.wait()
