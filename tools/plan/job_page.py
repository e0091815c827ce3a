"""The page of a job's plan: what it is, where the time goes, and what the next plans lose."""

from functools import partial
from typing import Any

from ...sched.planners.job.planner import CAUSES, JobAnswer
from ..analyze.page import bars

Json = dict[str, Any]
_COLOURS = ("--waiting", "--isf", "--length", "--balanced", "--padding")


def render_job(report: Json, answer: JobAnswer) -> str:
    """Return the page as HTML; nothing is loaded from elsewhere."""
    rows = [("This plan", _parts(report))]
    if report["today"]:
        rows.append(("As it would be run today", _parts(report["today"])))
    plan = answer.best.plan
    stages = [
        {"layers": size, "again": len(again), "rank": rank}
        for size, again, rank in zip(
            plan.stages, plan.recompute, plan.layout().placement, strict=True
        )
    ]
    template = bars.page_environment(__package__).get_template("job.html.j2")
    page = template.render(
        report=report,
        stages=stages,
        legend=list(zip(("work", *CAUSES), ("--work", *_COLOURS), strict=True)),
        chart=bars.both_widths(partial(bars.stacked, rows)),
    )
    return bars.unbroken(page)


def _parts(one: Json) -> list[bars.Part]:
    lost = [one["lost"][cause] for cause in CAUSES]
    parts = zip(CAUSES, _COLOURS, lost, strict=True)
    return [
        bars.Part("work", "--work", max(0.0, 1 - sum(lost))),
        *(bars.Part(*part) for part in parts if part[2] > 0.0005),
    ]
