"""Measures Optimus' settings under set R: hidden encoder time, step time, and planning time."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from counterpoise.sched.bubble_filling.choose import Chosen, PlanScan, fitting, scan, shared_hosts
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    Host,
    host_step,
    plan_problem,
)
from counterpoise.sched.bubble_filling.instance import FillProblem
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.setup import FillSetup
from counterpoise.tools.schedule.fill_report import chosen_report

from ..baselines.joint_pipelines import balanced, megatron
from ..baselines.optimus_algorithm2 import fill_optimus

SETTINGS = ("1536", "2048", "3072")


class PaperFigures(NamedTuple):
    """Published figures of a setting: hidden per cent, planning seconds, step seconds, speed-up."""

    coarse: float
    fine: float
    planning_s: float
    balanced_s: float
    optimus_s: float
    speedup: float


# Optimus (2025), Tables 5 and 7.
PAPER = {
    "1536": PaperFigures(34.3, 57.5, 322.2, 10.43, 9.80, 1.06),
    "2048": PaperFigures(45.8, 69.3, 89.6, 8.06, 7.29, 1.11),
    "3072": PaperFigures(68.7, 85.0, 15.1, 5.87, 4.87, 1.21),
}
GUESSED = (
    "set R's constants for every model (43.7 % of the peak, 0.535 s exposed), LLAMA-70B in "
    "5 chunks a rank, Megatron-LM with 2 chunks and the best share of layers on the first rank"
)
PAPER_PLAN = EncoderPlan(stages=2, tensor=8, recompute=True, warmup="reduced")


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Hidden shares of one plan: coarse, whole kernels, split kernels, Algorithm 2 as printed."""

    coarse: float
    fine: float
    split: float
    printed: float


def setting_report(name: str) -> dict[str, object]:
    """Return one setting's figures under the keys of `make bench NAME=bubbles`."""
    setup = case_setup(name)
    hosts = {w: host_step(setup, EncoderPlan(2, 8, warmup=w)) for w in ("megatron", "reduced")}
    shares = efficiencies(setup, hosts["reduced"])
    whole, split_, seconds = width_scan(setup)
    begin = time.process_time()
    every = scan(setup, splittings=(None, *fitting(setup)))
    planner_seconds = time.process_time() - begin
    return {
        "eff_coarse": shares.coarse,
        "eff_fine": shares.fine,
        "eff_split": shares.split,
        "step_seconds": {
            "balanced": balanced(setup).makespan_ns / 1e9,
            "whole": _paper_plan(whole).filled.step_ns / 1e9,
            "split": _paper_plan(split_).filled.step_ns / 1e9,
            "llm_only": hosts["megatron"].gaps.step_ns / 1e9,
        },
        "seconds": seconds,
        "planner_seconds": planner_seconds,
        "best_plan": chosen_report(every.best) | {"whole_kernels": chosen_report(whole.best)},
    }


def efficiencies(setup: FillSetup, host: Host) -> Efficiencies:
    """Return the hidden shares of the paper's plan with its adjusted warm-up."""
    problem = plan_problem(setup, PAPER_PLAN, host)
    coarse = fill_optimus(problem, fine=False)
    splittings = fitting(setup)
    fine, cut = (
        scan(setup, candidates=[PAPER_PLAN], splittings=how, host_of=lambda _: host).best
        for how in ((None,), splittings)
    )
    return Efficiencies(
        coarse.efficiency,
        fine.filled.efficiency,
        cut.filled.efficiency,
        fill_optimus(problem).efficiency,
    )


def width_scan(setup: FillSetup) -> tuple[PlanScan, PlanScan, float]:
    """Scan all plans of the paper's tensor width, whole and split; return both and the CPU seconds.

    The time includes simulation, gaps and filling; no plan is skipped.
    """
    candidates = [
        replace(PAPER_PLAN, stages=stages, warmup=warmup)
        for warmup in ("megatron", "reduced")
        for stages in range(1, setup.stages + 1)
        if setup.stages % stages == 0
    ]
    begin = time.process_time()
    hosts = shared_hosts(setup)
    whole = scan(setup, candidates=candidates, host_of=hosts, prune=False)
    cut = scan(setup, candidates=candidates, host_of=hosts, splittings=fitting(setup), prune=False)
    return whole, cut, time.process_time() - begin


def _paper_plan(found: PlanScan) -> Chosen:
    """Return the best plan of the paper's pipeline size, over warm-ups and splittings."""
    return next(one for one in found.chosen if one.plan.stages == PAPER_PLAN.stages)


def table_report(names: Sequence[str], paper: Mapping[str, object]) -> dict[str, object]:
    """Return speed-ups over both baselines for cases of Tables 3 and 6, and the paper's."""
    rows: dict[str, object] = {}
    for name in names:
        setup = case_setup(name)
        hosts = shared_hosts(setup)
        steps = {
            "whole": scan(setup, host_of=hosts).best.filled.step_ns,
            "split": scan(
                setup, host_of=hosts, splittings=(None, *fitting(setup))
            ).best.filled.step_ns,
        }
        base = {"balanced": balanced(setup).makespan_ns, "megatron": megatron(setup).makespan_ns}
        rows[name] = {
            f"{what}_vs_{other}": ns / step
            for what, step in steps.items()
            for other, ns in base.items()
        } | {"step_seconds": steps["split"] / 1e9}
    return {"rows": rows, "paper": paper, "guessed": GUESSED}


def small_problem() -> FillProblem:
    """Return a small problem, to compile the kernels with."""
    setup = replace(case_setup("A"), microbatches=4)
    return plan_problem(setup, EncoderPlan(1, 8), host_step(setup), splitting=fitting(setup)[0])
