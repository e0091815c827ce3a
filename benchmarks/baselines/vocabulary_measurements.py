"""Reads the measurements that the authors of vocabulary parallelism published (8 A100, 4B model).

Two files: a table of pass times, one row a run, and a table of utilisation and peak memory (GiB
that the allocator reserved, the largest rank's). The first has no header: its columns are what the
authors' `schedule_timers.py` prints, microseconds per stage of F, of B, and of four pieces of
vocabulary work on each rank (S and T fused, the embedding's forward and backward, sending), and the
time of the run's own iteration. The interlaced method's S has the time that collectives block.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PASS_TIMES = "vocab_pass_times_8xA100.csv"
MEASURED = "vocab_measured_mfu_memory.txt"
PEAK_FLOPS_PER_S = 312 * 10**12
# Our names for the methods of the two files.
METHODS = {
    "base": "base", "redis": "redis", "vocab": "alg2", "synctwice": "alg1",
    "interlaced": "interlaced",
}  # fmt: skip
_REPORTED = {
    "baseline": "base", "redis": "redis", "vocab-2": "alg2", "vocab-1": "alg1",
    "interlaced": "interlaced",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run: its sizes, and in microseconds per stage its passes and vocabulary work.

    `pieces_us`: that work in pieces: output layer, embedding's forward and backward, sending.
    """

    method: str
    tokens: int
    words: int
    microbatches: int
    layers: int
    hidden: int
    forward_us: tuple[int, ...]
    backward_us: tuple[int, ...]
    output_us: tuple[int, ...]
    iteration_ms: float
    pieces_us: tuple[tuple[int, ...], ...] = ()

    def utilisation(self, step_ns: int) -> float:
        """Return model FLOPs utilisation in percent, by the formula of Narayanan et al., 2021."""
        tokens, hidden, layers = self.tokens, self.hidden, self.layers
        shape = 1 + tokens / (6 * hidden) + self.words / (12 * layers * hidden)
        flops = 72 * tokens * layers * hidden**2 * shape * self.microbatches
        return 100 * flops / (step_ns / 1e9 * len(self.forward_us) * PEAK_FLOPS_PER_S)


def read_runs(folder: Path) -> Iterator[MeasuredRun]:
    """Yield the runs of the methods we simulate. Raises OSError or ValueError for another file."""
    with (folder / PASS_TIMES).open(newline="") as file:
        for row in csv.reader(file):
            if row[13] not in METHODS:
                continue
            vocabulary = [_numbers(row[column]) for column in (27, 28, 29, 30)]
            yield MeasuredRun(
                method=METHODS[row[13]],
                tokens=int(row[2]),
                words=int(row[4]),
                microbatches=int(row[1]),
                layers=int(row[5]),
                hidden=int(row[3]),
                forward_us=_numbers(row[25]),
                backward_us=_numbers(row[26]),
                output_us=tuple(map(sum, zip(*vocabulary, strict=True))),
                iteration_ms=float(row[20]),
                pieces_us=tuple(vocabulary),
            )


@dataclass(frozen=True, slots=True)
class Reported:
    """What the authors report of a run: utilisation in percent, and peak memory in GiB."""

    utilisation: float
    peak_gib: float


def read_measured(folder: Path) -> dict[tuple[int, str, str], Reported]:
    """Return what is reported by sequence length, vocabulary ("32k") and method."""
    found = {}
    for line in (folder / MEASURED).read_text().splitlines():
        match = re.match(r"\s*(\d+)k\s+(\d+k)\s+(\S+)\s+([\d.]+)%\s+([\d.]+)", line)
        if match and match[3] in _REPORTED:
            key = int(match[1]) * 1024, match[2], _REPORTED[match[3]]
            found[key] = Reported(float(match[4]), float(match[5]))
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))
