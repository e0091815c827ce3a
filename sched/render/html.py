"""Write timelines as one self-contained HTML page that compares them.

The page loads nothing from elsewhere. Its template, style sheet and scripts lie in `page/`; this
module computes the JSON that the scripts read. All panels share one time axis and one memory axis.
Up to DOM_LIMIT passes, each is an SVG node with the attribute `data-pass`; beyond that the page
draws on a canvas.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

from ..ir.kinds import is_staged
from ..ir.program import Pass
from ..simulation.timeline import Curve, Timeline
from .palette import edge, ink, paint, tint
from .picture import Row, chunk_of, chunks, kind_names, label, rows, word
from .summary import BYTES, CAUSES, MemoryUnit, causes, format_memory, format_time, peak

DOM_LIMIT = 6000
SCRIPTS = ("words.js", "panel.js", "main.js")
Json = dict[str, object]


def render_html(
    timelines: Sequence[Timeline],
    *,
    title: str = "Pipeline schedules",
    subtitle: str = "",
    unit: MemoryUnit = BYTES,
) -> str:
    """Return the page. Raises ValueError without timelines.

    `unit`: the unit of the timelines' memory.
    """
    # Only those who write a page pay for importing jinja2.
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    if not timelines:
        raise ValueError("nothing to draw: got no timelines; give at least one")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(_part("page.html.j2")).render(
        title=title,
        subtitle=subtitle,
        style=Markup(_part("page.css")),
        scripts=[Markup(_part(name)) for name in SCRIPTS],
        data=Markup(_script_json(page_data(timelines, unit))),
    )


def page_data(timelines: Sequence[Timeline], unit: MemoryUnit = BYTES) -> Json:
    """Return the data for the page's scripts; a row's passes are columns, to keep it small."""
    names = kind_names(timelines)
    most = max(map(chunks, timelines))
    return {
        "limit": DOM_LIMIT,
        "memoryUnit": {"word": unit.word, "size": unit.size, "one": unit.one},
        "causes": list(CAUSES),
        "kinds": [_kind(name, names, most) for name in names],
        "schedules": [_schedule(t, names, unit) for t in timelines],
    }


def _part(name: str) -> str:
    """Return a file of the page."""
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _script_json(value: Json) -> str:
    """Return JSON that may be the content of a script element, which "</script>" would end."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _kind(name: str, names: tuple[str, ...], most: int) -> Json:
    look = paint(name, names)
    levels = range(most if is_staged(name) else 1)
    fills = [tint(look.fill, chunk, most) for chunk in levels]
    return {
        "name": name,
        "word": word(name, names),
        "striped": look.striped,
        "staged": is_staged(name),
        "edge": edge(look.fill),
        "fills": [[fill, ink(fill)] for fill in fills],
    }


def _schedule(timeline: Timeline, names: tuple[str, ...], unit: MemoryUnit) -> Json:
    most = peak(timeline)
    has_memory = most.bytes > 0
    figures = [
        ("makespan", format_time(timeline.makespan_ns)),
        ("bubble", f"{100 * timeline.bubble_ratio:.1f} %"),
    ]
    if has_memory:
        figures.append(("peak memory", format_memory(most.bytes, unit)))
    return {
        "name": timeline.name,
        "note": _note(timeline),
        "chunks": chunks(timeline),
        "makespan": timeline.makespan_ns,
        "bubble": timeline.bubble_ratio,
        "causes": causes(timeline),
        "peak": {"value": most.bytes, "rank": most.rank, "time": most.time_ns},
        "figures": figures,
        "rows": [_row(row, timeline.placement, names) for row in rows(timeline)],
        "memory": [_curve(curve) for curve in timeline.memory] if has_memory else [],
        "critical": _critical(timeline),
    }


def _note(timeline: Timeline) -> str:
    ranks, held = len(timeline.ranks), chunks(timeline)
    words = [f"{ranks} rank{'s' * (ranks > 1)}"]
    if held > 1:
        words.append(f"{held} chunks a rank")
    return ", ".join(words)


def _row(row: Row, placement: tuple[int, ...], names: tuple[str, ...]) -> Json:
    place = {name: number for number, name in enumerate(names)}
    chunk = cache(lambda stage, kind: chunk_of(Pass(stage, kind), placement))
    slots = row.slots
    return {
        "label": row.label,
        "lane": row.lane,
        "t": [label(slot, row.lane) for slot in slots],
        "k": [place[slot.what.kind] for slot in slots],
        "g": [slot.what.stage for slot in slots],
        "c": [chunk(slot.what.stage, slot.what.kind) for slot in slots],
        "m": [slot.what.microbatch for slot in slots],
        "s": [slot.start_ns for slot in slots],
        "d": [slot.end_ns - slot.start_ns for slot in slots],
    }


def _curve(curve: Curve) -> Json:
    return {"t": [time for time, _ in curve], "v": [held for _, held in curve]}


def _critical(timeline: Timeline) -> list[tuple[int, int]]:
    """Return the critical path as (row, index in the row)."""
    found = {
        (row.lane, slot): (number, index)
        for number, row in enumerate(rows(timeline))
        for index, slot in enumerate(row.slots)
    }
    both = (found.get((False, slot)) or found.get((True, slot)) for slot in timeline.critical)
    return [place for place in both if place is not None]
