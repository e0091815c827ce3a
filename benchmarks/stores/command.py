"""`make bench NAME=stores`: epochs from an S3 that is far away, by counterpoise and by others."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from counterpoise.tools.console.reporting import emit, progress_console
from counterpoise.workers.tar.dataset import TarDataset

from .systems import AHEAD, BATCH, IMAGES

LITDATA = """
import sys, pickle
import litdata

def as_bytes(images):
    # litData takes the form of all samples from the first, and they have several images, or none.
    return pickle.dumps(images)

if __name__ == "__main__":
    images = pickle.load(open(sys.argv[1], "rb"))
    litdata.optimize(as_bytes, images, sys.argv[2], num_workers=1, chunk_size=64)
"""


@click.command("stores")
@click.argument("shards")
@click.option("--workers", default=2, show_default=True, help="Of each system.")
@click.option("--rounds", default=5, show_default=True, help="Epochs of each system, interleaved.")
@click.option("--ms", default=50.0, show_default=True, help="Before each answer.")
@click.option("--mb-s", default=20.0, show_default=True, help="Of a connection.")
@click.option("--decode", is_flag=True, help="Decode the images, too.")
@click.option("--litdata", help="A Python that has litdata and torch; left out without.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    shards: str,
    workers: int,
    rounds: int,
    ms: float,
    mb_s: float,
    decode: bool,
    litdata: str | None,
    as_json: bool,
) -> None:
    r"""Read the tars of a folder from an S3 that is far away, by each system in turn.

    Epochs are in processes of their own; in each round each system has one, with a cold cache but
    for counterpoise's index, which is made once before. Ratios are those of a round.

    \b
    Example:
      make bench NAME=stores ARGS="$DATA/shards --rounds 5"
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-bench-") as name:
        folder = Path(name)
        shutil.copytree(shards, folder / "bench" / "train", ignore=_not_tars)
        systems = ["counterpoise", AHEAD, "webdataset over s3fs"]
        if litdata is not None:
            _write_chunks(folder, litdata)
            systems.append("litData")
        server = _started(folder, ms, mb_s)
        try:
            found = _measured(systems, folder, _port(server), rounds, workers, decode, litdata)
        finally:
            server.terminate()
            server.wait()
    report = {"workers": workers, "ms": ms, "mb_s": mb_s, "decode": decode, "systems": found}
    emit(report, as_json, _table(found))


def _not_tars(_: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".tar")]


def _started(folder: Path, ms: float, mb_s: float) -> "subprocess.Popen[str]":
    words = [
        sys.executable, "-P", "-m", "benchmarks.stores.server", str(folder), str(ms), str(mb_s),
    ]  # fmt: skip
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _port(server: "subprocess.Popen[str]") -> int:
    assert server.stdout is not None
    return int(server.stdout.readline())


def _write_chunks(folder: Path, python: str) -> None:
    """Write litData's chunks of the same images."""
    import pickle

    dataset = TarDataset(str(folder / "bench" / "train"), cache=folder / "local")
    raws = [dataset.raw(index) for index in range(len(dataset))]
    images = [
        {name: raw[name] for name in raw if name.rpartition(".")[2] in IMAGES} for raw in raws
    ]
    (folder / "images").write_bytes(pickle.dumps(images))
    (folder / "chunks.py").write_text(LITDATA)
    words = [python, folder / "chunks.py", folder / "images", folder / "bench" / "lit"]
    subprocess.run(list(map(str, words)), check=True, stdout=sys.stderr)


def _measured(
    systems: list[str],
    folder: Path,
    port: int,
    rounds: int,
    workers: int,
    decode: bool,
    litdata: str | None,
) -> dict[str, Any]:
    environment = {
        **os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "COUNTERPOISE_CACHE": str(folder / "cache"), "LITDATA_CACHE": str(folder / "litdata-cache"),
    }  # fmt: skip
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for number in range(-1, rounds):
        # The first round makes the index and fills the file system's cache.
        for system in systems if number % 2 else systems[::-1]:
            shutil.rmtree(folder / "litdata-cache", ignore_errors=True)
            is_lit = system == "litData"
            python = (litdata or "") if is_lit else sys.executable
            url = f"s3://bench/{'lit' if is_lit else 'train'}/"
            words = ["-P", "-m", "benchmarks.stores.systems", system, url, str(workers)]
            environment["COUNTERPOISE_STORE"] = "requests=128" if system == AHEAD else ""
            done = subprocess.run(
                [python, *words, str(int(decode))],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{system} failed: {done.stderr[-1500:]}")
            run = json.loads(done.stdout.strip().splitlines()[-1])
            progress_console.print(f"{system}: {run}")
            if number >= 0:
                runs[system].append(run)
            elif system == "counterpoise":
                opening = run["opening"]
    return {system: _summary(runs, system, opening) for system in systems}


def _summary(runs: dict[str, list[dict[str, Any]]], system: str, opening: float) -> dict[str, Any]:
    own, others = runs[system], runs["counterpoise"]
    rates = [run["samples"] / run["seconds"] for run in own]
    ratios = [
        mine["samples"] / mine["seconds"] / rate for mine, rate in zip(others, rates, strict=True)
    ]
    found = {
        "samples": own[0]["samples"],
        "samples_s": statistics.median(rates),
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "batch_size": BATCH,
    }
    return found | ({"index_s": opening} if system == "counterpoise" else {})


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("system", "samples/s", "counterpoise is so many times as fast", "rounds"):
        table.add_column(name)
    for system, one in found.items():
        low, high = one["ratios"][0], one["ratios"][-1]
        table.add_row(
            system, f"{one['samples_s']:.0f}", f"{one['ratio']:.2f}", f"{low:.2f} to {high:.2f}"
        )
    return table
