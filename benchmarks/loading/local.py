"""`make bench NAME=local`: local balanced loops with known costs, of this checkout and another.

Each party is a process of its own that imports its own checkout; rounds are interleaved. Ours is
also compared with our own plain loop on the same data.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import click

from counterpoise.tools.console.reporting import emit

PARTY = Path(__file__).resolve().with_name("local_party.py")
ROOT = Path(__file__).resolve().parents[2]
# What a sample is (bytes of a tensor, or real shards), samples of a microbatch, and of an epoch.
CELLS = (
    ("1024", 16, 20_000), ("1024", 32, 30_000), ("150000", 32, 4_000), ("602112", 32, 1_500),
    ("shards", 8, 256),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Party:
    """A process that runs rounds."""

    process: "subprocess.Popen[str]"

    def round(self) -> dict[str, float]:
        """Run one epoch; return samples a second and CPU microseconds a sample."""
        asked: IO[str] | None = self.process.stdin
        told: IO[str] | None = self.process.stdout
        if asked is None or told is None:
            raise RuntimeError("the party has no pipes")
        asked.write("go\n")
        asked.flush()
        found: dict[str, float] = json.loads(told.readline() or "null")
        if found is None:
            raise RuntimeError("a party has ended: see its error above")
        return found

    def end(self) -> None:
        """Let all its ranks end."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def start(checkout: Path, kind: str, cell: tuple[str, int, int], ranks: int, data: str) -> Party:
    """Start a party of a checkout."""
    folder = tempfile.mkdtemp(prefix="counterpoise-bench-")
    (Path(folder) / "counterpoise").symlink_to(checkout.resolve())
    what, size, count = cell
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What PYTHONPATH says is found before an editable installation.
    command = [sys.executable, "-P", str(PARTY)]
    arguments = [kind, what, str(count), str(size), str(ranks), str(port)]
    environment = {
        **os.environ,
        "SHARDS": f"{data}/shards/*.tar",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": folder,
    }
    process = subprocess.Popen(
        [*command, *arguments], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    return Party(process)


@click.command("local", epilog="Example: make bench NAME=local ARGS='--old DIR --rounds 10 --json'")
@click.option("--old", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--ranks", type=click.IntRange(1), multiple=True, help="Default: 1 and 2.")
@click.option("--cell", "chosen", multiple=True, help="As 1024x16 or shardsx8; default: all.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    old: Path, rounds: int, ranks: tuple[int, ...], chosen: tuple[str, ...], as_json: bool
) -> None:
    """Compare local balanced loops with those of a checkout at OLD, and with our plain loop."""
    data = os.environ.get("COUNTERPOISE_DATA", str(ROOT.parent / "shared" / "data"))
    rows = []
    for number in ranks or (1, 2):
        for cell in CELLS:
            name = f"{cell[0]}x{cell[1]}"
            if (chosen and name not in chosen) or (cell[0] == "shards" and number > 1):
                continue
            rows.append(
                {"cell": name, "ranks": number, **_compare(old, cell, number, rounds, data)}
            )
            click.echo(json.dumps(rows[-1]), err=True)
    emit({"rows": rows}, as_json)


def _compare(
    old: Path, cell: tuple[str, int, int], ranks: int, rounds: int, data: str
) -> dict[str, Any]:
    parties = {
        "old": start(old, "balanced", cell, ranks, data),
        "new": start(ROOT, "balanced", cell, ranks, data),
    }
    if ranks == 1 and cell[0] != "shards":
        parties["plain"] = start(ROOT, "plain", cell, ranks, data)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in parties}
    for number in range(rounds + 2):
        for name, party in parties.items():
            result = party.round()
            if number >= 2:
                found[name].append(result)
    for party in parties.values():
        party.end()
    row: dict[str, Any] = {}
    for name in ("samples_s", "cpu_us", "main_us"):
        row[name] = _ratio(found["new"], found["old"], name)
    if "plain" in found:
        row["of_plain"] = _ratio(found["new"], found["plain"], "samples_s")
    for name, results in found.items():
        row[f"{name}_figures"] = {
            key: round(median(each[key] for each in results), 1) for key in results[0]
        }
    return row


def _ratio(
    ours: list[dict[str, float]], theirs: list[dict[str, float]], name: str
) -> dict[str, float]:
    """Return the ratio of each round: the median and the range."""
    each = [a[name] / b[name] for a, b in zip(ours, theirs, strict=True)]
    return {
        "median": round(median(each), 3), "least": round(min(each), 3), "most": round(max(each), 3),
    }  # fmt: skip
