"""The rate of an honest job beside a flooding peer, against one beside a peer that only burns CPU.

Not a test: a measurement, for a machine that does nothing else. In each round the job runs beside
a flood, and then beside a process that takes the same share of a CPU and sends nothing; the ratio
of the two rates is what the flood costs beyond its own CPU time. A third run beside the burner
again shows how far two equal runs differ here.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from counterpoise.loader import DataLoader, RemoteDataset
from tests.security import served

SAMPLES = 240
SETTLE_S = 0.7

PEER = """
import sys, zmq
from counterpoise.balancer.protocol.messages import ListJobs
from counterpoise.balancer.transport.wire import encode
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.ROUTING_ID, b"flood")
socket.setsockopt(zmq.LINGER, 0)
socket.connect(sys.argv[1])
while True:
    try:
        socket.send(MESSAGE, zmq.NOBLOCK)
        while socket.poll(0):
            socket.recv()
    except zmq.Again:
        pass
"""
IDLE = """
import collections, sys
from tests.security import raw_zmtp
held = collections.deque(maxlen=400)
while True:
    try:
        held.append(raw_zmtp.greet(sys.argv[1]))
    except OSError:
        pass
"""
BURNER = """
import sys, time
share = float(sys.argv[1])
while True:
    until = time.process_time() + 0.01 * share
    while time.process_time() < until:
        pass
    time.sleep(0.01 * (1 - share))
"""
FLOODS = {
    "nonsense": PEER.replace("MESSAGE", 'b"this is no message of ours"'),
    "questions": PEER.replace("MESSAGE", "encode(ListJobs())"),
    "idle connections": IDLE,
}


def main() -> None:
    """Measure, and print a line a round and the medians, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=4, help="epochs of the job in one run")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.rounds, given.epochs)
    if given.json:
        print(json.dumps(found))
        return
    for flood, rounds in found.items():
        for kind in ("flood", "again"):
            ratios = sorted(each[kind] / each["burner"] for each in rounds)
            print(
                f"{flood}, {kind} / burner: median {statistics.median(ratios):.3f}, "
                f"range {ratios[0]:.2f} to {ratios[-1]:.2f}"
            )


def measure(rounds: int, epochs: int) -> dict[str, list[dict[str, float]]]:
    """Return for each kind of flood its rounds: samples/s, CPU shares, and the memory in MB."""
    served.SAMPLES = SAMPLES
    found: dict[str, list[dict[str, float]]] = {flood: [] for flood in FLOODS}
    with tempfile.TemporaryDirectory() as folder:
        job = served.ServedJob(Path(folder))
        try:
            for _ in range(rounds):
                for flood, program in FLOODS.items():
                    rate, share = _run_beside(job, epochs, program, job.address)
                    resident = job.resident_bytes() >> 20
                    burner, burned = _run_beside(job, epochs, BURNER, str(share))
                    again, _ = _run_beside(job, epochs, BURNER, str(share))
                    found[flood].append({
                        "flood": rate, "burner": burner, "again": again,
                        "flood_cpus": share, "burner_cpus": burned, "balancer_mb": resident,
                    })  # fmt: skip
                    print(flood, found[flood][-1], file=sys.stderr, flush=True)
        finally:
            job.close()
    return found


def _run_beside(
    job: served.ServedJob, epochs: int, program: str, argument: str
) -> tuple[float, float]:
    """Return the job's samples/s beside a process, and what share of a CPU that took."""
    loader = DataLoader(
        RemoteDataset("*.tar", arguments=served.SMALL), balance="fixed", batch_size=2, shuffle=True,
        virtual_ranks=2, collate_fn=list, timeout=60, balancer=job.address,
    )  # fmt: skip
    for _ in loader:
        pass  # it is connected before the other one comes
    began = time.monotonic()
    other = subprocess.Popen([sys.executable, "-c", program, argument])
    try:
        time.sleep(SETTLE_S)
        started = time.monotonic()
        delivered = 0
        for epoch in range(1, epochs + 1):
            loader.set_epoch(epoch)
            delivered += sum(len(batch) for batch in loader)
        rate = delivered / (time.monotonic() - started)
        fields = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return rate, min(1.0, ticks / 100 / (time.monotonic() - began))
    finally:
        other.kill()
        other.wait()
        loader.close()


if __name__ == "__main__":
    main()
