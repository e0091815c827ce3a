"""`make bench NAME=picture`: one step of 8 ranks, as it was delivered, drawn for the README.

Each way is a loop of the same samples over `cp.DataLoader`, in which one process plays the ranks.
Work is counted in the batches: a rank's tokens, of which some are padding. A rank then waits until
the slowest one is done. Drawn is the step whose random order takes the median time.
"""

from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import click
import numpy as np
from rich.table import Table

from counterpoise import Balance, DataLoader, Ranks, TarDataset
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.sched.render.palette import make_theme_css
from counterpoise.sched.render.svg import add, add_axis, document, new_picture
from counterpoise.tools.console.reporting import emit, progress_console
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import Selection, VisionLanguage

RANKS, EACH, ACCUMULATE = 8, 8, 4
WAYS = {
    "random order": Balance(
        grouping="fixed", partition="given", accumulate=ACCUMULATE, layout="padded"
    ),
    'balance="auto"': Balance("auto", accumulate=ACCUMULATE, layout="padded"),
    'balance="auto", layout="packed"': Balance("auto", accumulate=ACCUMULATE, layout="packed"),
}
PARTS = ("tokens of samples", "padding", "waiting for the slowest rank")
WIDTH, LEFT, RIGHT, TOP, BAR, PANEL = 760, 62, 736, 56, 12, 154
STYLE = (
    make_theme_css(
        {
            "ink": ("#101418", "#e8eaed"),
            "paper": ("#fff", "#15181c"),
            "grid": ("#d5d8dc", "#3a4047"),
            "p0": ("#3a55c8", "#8296f5"),
            "p1": ("#e0a43a", "#b97d1e"),
            "p2": ("#e4e6e9", "#2f353c"),
        }
    )
    + """svg{font:13px system-ui,sans-serif}
text{fill:var(--ink)}.name{font-weight:600}.rank{font-size:12px}.end{text-anchor:end}.grid{stroke:var(--grid)}
.p0{fill:var(--p0)}.p1{fill:var(--p1)}.p2{fill:var(--p2)}
"""
)


@click.command("picture", epilog="Example: make bench NAME=picture ARGS='--out step.svg'")
@click.option("--data", metavar="PATTERN", help="Tar shards [default: the demo's].")
@click.option("--longest", default=8192, show_default=True, help="Leave out longer samples.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the SVG here.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(data: str | None, longest: int, out: Path | None, as_json: bool) -> None:
    """Deliver an epoch in random order and balanced, and draw one step of each."""
    # Small tiles: how many there are, and so the tokens, does not depend on their pixels.
    shards = TarDataset(data or ensure_demo_data(), VisionLanguage(tile_size=28))
    samples = Selection(shards, where={"tokens": (1, longest)})
    work = {way: _deliver(samples, way) for way in WAYS}
    slowest = work["random order"].sum(axis=2).max(axis=1)
    step = int(np.argsort(slowest)[len(slowest) // 2])
    if out is not None:
        out.write_text(picture({way: found[step] for way, found in work.items()}), "utf-8")
        progress_console.print(f"wrote {out}")
    ways = {way: figures(found) for way, found in work.items()}
    report = {"samples": len(samples), "steps": len(slowest), "drawn_step": step, "ways": ways}
    table = Table("", "tokens of the slowest rank", "waiting", "padding", title="A mean step")
    for way, found in ways.items():
        shares = (f"{100 * found[key]:.1f} %" for key in ("waiting", "padding"))
        table.add_row(way, f"{found['step_tokens']:,.0f}", *shares)
    emit(report, as_json, table)


def _deliver(samples: Any, way: str) -> Int64:
    """Return what each rank got in each whole step: (steps, ranks, 2), own tokens and padding."""
    progress_console.print(f"delivering: {way}")
    loader = DataLoader(samples, EACH, shuffle=True, balance=WAYS[way], ranks=Ranks(virtual=RANKS))
    steps = []
    with closing(loader):
        for step in loader.steps():
            got = np.zeros((RANKS, 2), np.int64)
            for batch, info in zip(step.microbatches, step.infos, strict=True):
                padding = info.padding["tokens"]
                got[info.rank] += (batch["input_ids"].numel() - padding, padding)
            if sum(info.samples for info in step.infos) == RANKS * EACH * ACCUMULATE:
                steps.append(got)
    if not steps:
        raise ValueError(
            f"{len(samples)} samples are less than a step of {RANKS * EACH * ACCUMULATE}; "
            "give more --data, or a larger --longest"
        )
    return np.stack(steps)


def figures(work: Int64) -> dict[str, float]:
    """Return, of work (steps, ranks, 2), a mean step's slowest rank and the shares of its time."""
    each = work.sum(axis=2)
    time = float(each.max(axis=1).mean())
    padding = float(work[..., 1].mean())
    waiting = time - float(each.mean())
    return {"step_tokens": time, "waiting": waiting / time, "padding": padding / time}


def picture(work: Mapping[str, Int64]) -> str:
    """Return an SVG with a panel for each way, of work (ranks, 2)."""
    high = max(int(found.sum(axis=1).max()) for found in work.values())
    pixels = (RIGHT - LEFT) / high
    ticks = range(0, high + 1, 10 ** (len(str(high)) - 1) // (2 if str(high) < "2" else 1))
    root = new_picture("One step of 8 ranks", STYLE)
    for number, (x, name) in enumerate(zip((LEFT, 236, 346), PARTS, strict=True)):
        add(root, "rect", class_=f"p{number}", x=x, y=14, width=14, height=12)
        add(root, "text", name, x=x + 20, y=25)
    foot = TOP + PANEL * len(work) - 16
    labels = ((tick, f"{tick:,}") for tick in ticks)
    add_axis(root, lambda tokens: LEFT + tokens * pixels, labels, TOP, foot)
    for number, (way, found) in enumerate(work.items()):
        _add_panel(root, way, found, pixels, TOP + PANEL * number)
    about = f"tokens that a rank computes in one step of {RANKS * EACH * ACCUMULATE} samples"
    add(root, "text", about, x=RIGHT, y=foot + 38, class_="end")
    return document(root, WIDTH, foot + 50)


def _add_panel(root: Element, way: str, found: Int64, pixels: float, top: float) -> None:
    """Add a panel's title and a bar for each rank: own tokens, padding, waiting."""
    slowest = int(found.sum(axis=1).max())
    add(root, "text", way, class_="name", x=LEFT, y=top + 10)
    said = f"the slowest rank: {slowest:,} tokens"
    add(root, "text", said, class_="end", x=RIGHT, y=top + 10)
    for rank, (own, padding) in enumerate(found.tolist()):
        y = top + 18 + (BAR + 3) * rank
        add(root, "text", f"rank {rank}", class_="rank end", x=LEFT - 6, y=y + 10)
        edges = (0, own, own + padding, slowest)
        for part, (start, end) in enumerate(pairwise(edges)):
            if end > start:
                place = {"x": LEFT + start * pixels, "width": (end - start) * pixels}
                bar = add(root, "rect", class_=f"p{part}", y=y, height=BAR, **place)
                add(bar, "title", f"rank {rank}: {end - start:,} {PARTS[part]}")
