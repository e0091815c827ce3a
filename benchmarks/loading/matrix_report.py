"""Reports `make bench NAME=matrix`: ratios of passes of one round, and CPU time a sample."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from counterpoise.tools.console.reporting import spread

from .systems.cell import Cell
from .systems.peers import OWN


@dataclass(frozen=True, slots=True)
class MatrixPass:
    """One pass: samples per second, CPU microseconds per sample of the trainer and of all."""

    rate: float
    trainer_us: float
    all_us: float


Passes = Mapping[Cell, Mapping[str, Sequence[MatrixPass]]]


def report(
    passes: Passes, rounds: int, versions: Mapping[str, str | None], failures: Mapping[str, str]
) -> dict[str, Any]:
    """Return the figures of every cell, and which peers took part, or why not.

    versions: of the peers that were asked for, None where one is not installed.
    """
    return {
        "rounds": rounds,
        "cells": [asdict(cell) | _figures(systems, rounds) for cell, systems in passes.items()],
        "peers": {
            name: {"version": version, "left_out": failures.get(name)}
            if version
            else {"version": None, "left_out": "not installed"}
            for name, version in versions.items()
        },
        "load_average": os.getloadavg()[0],
    }


def _figures(systems: Mapping[str, Sequence[MatrixPass]], rounds: int) -> dict[str, Any]:
    """Return a cell's figures; those of a peer that failed in it are left out."""
    ours = systems["ours"]
    return {
        "ratio": _ratios(ours, systems["torch"]),
        "ratio_of_equals": _ratios(systems["control"], systems["torch"]),
        **{name: _medians(systems[name]) for name in OWN},
        "peers": {
            name: {"ratio": _ratios(ours, found), **_medians(found)}
            for name, found in systems.items()
            if name not in OWN and len(found) == rounds
        },
    }


def _medians(passes: Sequence[MatrixPass]) -> dict[str, float]:
    parts = ("trainer_us", "all_us")
    rate = statistics.median(each.rate for each in passes)
    return {
        "samples_per_s": rate,
        **{part: statistics.median(getattr(each, part) for each in passes) for part in parts},
    }


def _ratios(ours: Sequence[MatrixPass], theirs: Sequence[MatrixPass]) -> dict[str, float]:
    return spread([a.rate / b.rate for a, b in zip(ours, theirs, strict=True)])


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Return the report as tables: against torch, one row a cell, and against each peer."""
    return [_against_torch(found), _against_peers(found)]


def _against_torch(found: Mapping[str, Any]) -> Table:
    made = Table(title="our loop against torch's (samples/s, ratio of each round)")
    columns = ("reads", "workers", "sample", "batch", "samples/s", "ratio", "range", "control")
    for column in (*columns, "trainer us", "torch's", "all us", "torch's"):
        made.add_column(column, justify="right")
    for cell in found["cells"]:
        ours, torchs, ratio = cell["ours"], cell["torch"], cell["ratio"]
        made.add_row(
            *_names(cell),
            f"{ours['samples_per_s']:.0f}",
            f"{ratio['median']:.2f}",
            _range(ratio),
            _range(cell["ratio_of_equals"]),
            *(f"{each['trainer_us']:.1f}" for each in (ours, torchs)),
            *(f"{each['all_us']:.1f}" for each in (ours, torchs)),
        )
    return made


def _against_peers(found: Mapping[str, Any]) -> Table:
    """Return a table with a row for each cell and peer; its caption names peers that are absent."""
    made = Table(
        title="our loop against its peers' (samples/s, ratio of each round: ours / theirs)"
    )
    made.add_column("sample x batch, workers, reads", min_width=24)
    for column in ("ratio", "range", "samples/s", "trainer us", "all us"):
        made.add_column(column, justify="right")
    for cell in found["cells"]:
        reads, workers, sample, batch = _names(cell)
        made.add_row(
            f"[bold]{sample}x{batch}, {workers}, {reads}[/]", "", "", *_costs(cell["ours"])
        )
        for name, peer in cell["peers"].items():
            ratio = peer["ratio"]
            span = f"{ratio['low']:.2f}-{ratio['high']:.2f}"
            made.add_row(name, f"{ratio['median']:.2f}", span, *_costs(peer))
        made.add_section()
    left_out = {name: each["left_out"] for name, each in found["peers"].items()}
    lines = [f"{name}: {why}" for name, why in left_out.items() if why]
    made.caption = "\n".join(lines) or None
    return made


def _costs(system: Mapping[str, float]) -> list[str]:
    """Return a system's samples/s and CPU microseconds a sample."""
    costs = (f"{system[part]:.1f}" for part in ("trainer_us", "all_us"))
    return [f"{system['samples_per_s']:.0f}", *costs]


def _names(cell: Mapping[str, Any]) -> list[str]:
    """Return what a row begins with."""
    reads = "all" if cell["consumer"] == "read" else "one byte"
    return [reads, *(str(cell[name]) for name in ("workers", "sample_bytes", "batch_size"))]


def _range(ratio: Mapping[str, float]) -> str:
    return f"{ratio['low']:.2f} to {ratio['high']:.2f}"
