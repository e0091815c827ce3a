"""`make bench NAME=analyze`: measures the header-only scan against `tar tf` and header reading.

All contenders run in turns in this process (`tar` in its own). The CPU time of both counts, so the
figures are samples per second and core, whatever else the machine does. The files
are in the page cache. A round's ratio is ours / theirs in samples per CPU second.

- `ours`: what `analyze` does in one process on shards that it has never seen: index, sizes, tokens,
  sources; indexes, costs and rows are kept in an empty folder.
- `tarfile`: `tar tf SHARD`, then Python's tarfile and `PIL.Image.open` for each image's size.
- `offsets`: `tar tRf SHARD`, which says where each member stands; then one read for each image and
  `PIL.Image.open` on its bytes. The fastest that we know without reading headers by hand. It parses
  no text, counts no tokens and keeps nothing.
"""

import io
import json
import os
import random
import resource
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image
from rich.progress import track
from rich.table import Table

from counterpoise.tools.analyze.scan.run import scan_all
from counterpoise.tools.analyze.scan.sources import ScanOptions, find_tasks
from counterpoise.tools.console.reporting import emit, progress_console, spread
from counterpoise.tools.runners import in_this_process
from counterpoise.workers.images.decode import is_image
from counterpoise.workers.sources.file_patterns import find_shards

WORDS = ("what", "how many", "is", "there", "in the picture", "a cat", "sees", "blue", "on a table")
SHARDS = 4
Contender = Callable[[Sequence[Path]], int]


@click.command("analyze")
@click.option("--data", metavar="PATTERN", help="Tar shards to scan too, besides small samples.")
@click.option("--samples", type=click.IntRange(SHARDS), default=5000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(data: str | None, samples: int, rounds: int, as_json: bool) -> None:
    """Compare the scan of tar shards with `tar tf` and reading image headers.

    \b
    Example:
      make bench NAME=analyze ARGS="--data 'shards/*.tar' --json"
    """  # noqa: D301
    with tempfile.TemporaryDirectory() as folder:
        sets = {"small": write_small(Path(folder), samples)}
        if data is not None:
            sets["data"] = list(find_shards(data))
        report = {name: compare(shards, rounds, name) for name, shards in sets.items()}
    emit({"sets": report}, as_json, _table(report))


def compare(shards: Sequence[Path], rounds: int, label: str = "") -> dict[str, Any]:
    """Return all contenders' samples per CPU second, and ratios of ours to theirs by round."""
    contenders: dict[str, Contender] = {"ours": ours, "tarfile": by_tarfile, "offsets": by_offsets}
    samples = ours(shards)
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for number in track(range(rounds), label, console=progress_console, transient=True):
        names = list(contenders) if number % 2 == 0 else list(reversed(contenders))
        for name in names:
            spent[name].append(cpu_seconds(contenders[name], shards))
    rates = {name: samples / statistics.median(times) for name, times in spent.items()}
    ratios = {name: _ratio(spent["ours"], spent[name]) for name in ("tarfile", "offsets")}
    return {"samples": samples, "samples_per_cpu_second": rates, "ratio": ratios}


def ours(shards: Sequence[Path]) -> int:
    """Scan as `analyze` does, storing the same columns; return the number of samples."""
    with tempfile.TemporaryDirectory() as kept:
        tasks = find_tasks([str(path) for path in shards])
        rows, _ = scan_all(tasks, ScanOptions(cache=kept), Path(kept, "parts"), in_this_process)
    return len(rows) + len(rows.failures)


def by_tarfile(shards: Sequence[Path]) -> int:
    """List with `tar tf`, read headers through tarfile and Pillow; return the number of images."""
    images = 0
    for shard in shards:
        _listing("tf", shard)
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if is_image(member.name):
                    file = tar.extractfile(member)
                    images += file is not None and min(Image.open(file).size) > 0
    return images


def by_offsets(shards: Sequence[Path]) -> int:
    """List with `tar tRf`, read headers at the listed offsets; return the number of images."""
    images = 0
    for shard in shards:
        lines = [line.split(": ", 1) for line in _listing("tRf", shard).splitlines()]
        bodies = [512 * int(block.removeprefix("block ")) + 512 for block, _ in lines]
        ends = [*bodies[1:], shard.stat().st_size]
        with shard.open("rb", buffering=0) as file:
            for (_, name), start, end in zip(lines, bodies, ends, strict=True):
                if is_image(name):
                    data = os.pread(file.fileno(), end - start, start)
                    images += min(Image.open(io.BytesIO(data)).size) > 0
    return images


def cpu_seconds(work: Contender, shards: Sequence[Path]) -> float:
    """Return the CPU time, user and system, of this process and its children."""
    before = _cpu()
    work(shards)
    return _cpu() - before


def write_small(folder: Path, samples: int) -> list[Path]:
    """Write shards of small samples: a JPEG of about 7 kB and a conversation of 1 to 3 rounds."""
    draw, levels = random.Random(0), np.random.default_rng(0)
    pictures = [_picture(draw, levels) for _ in range(64)]
    paths = [folder / f"small-{shard}.tar" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        with tarfile.open(path, "w") as tar:
            for number in range(shard * samples // SHARDS, (shard + 1) * samples // SHARDS):
                members = {"json": _conversation(draw), "jpg": pictures[number % len(pictures)]}
                for extension, body in members.items():
                    info = tarfile.TarInfo(f"s{number:06}.{extension}")
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))
    return paths


def _listing(how: str, shard: Path) -> str:
    return subprocess.run(
        ["tar", how, str(shard)], stdout=subprocess.PIPE, check=True, text=True
    ).stdout


def _cpu() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def _picture(draw: random.Random, levels: np.random.Generator) -> bytes:
    width, height = draw.randint(96, 224), draw.randint(96, 224)
    coarse = levels.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(file, "JPEG", quality=85)
    return file.getvalue()


def _conversation(draw: random.Random) -> bytes:
    def say(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    turns = []
    for number in range(draw.randint(1, 3)):
        asked = "<image>\n" * (number == 0) + say(5, 30)
        turns += [{"from": "human", "value": asked}, {"from": "gpt", "value": say(5, 60)}]
    return json.dumps({"source": "web", "conversations": turns}).encode()


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    return spread([their / our for our, their in zip(ours, theirs, strict=True)])


def _table(report: Mapping[str, Mapping[str, Any]]) -> Table:
    shown = Table(title="Header-only scan: samples per CPU second, one process")
    for column in ("set", "ours", "tarfile", "ours / tarfile", "offsets", "ours / offsets"):
        shown.add_column(column, justify="right")
    for name, one in report.items():
        rates, ratios = one["samples_per_cpu_second"], one["ratio"]
        cells = [f"{rates['ours']:,.0f}"]
        for other in ("tarfile", "offsets"):
            range_ = f"{ratios[other]['low']:.2f} to {ratios[other]['high']:.2f}"
            cells += [f"{rates[other]:,.0f}", f"{ratios[other]['median']:.2f} ({range_})"]
        shown.add_row(name, *cells)
    return shown
