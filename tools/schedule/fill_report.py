"""Report what `counterpoise schedule fill` found: tables, sentences and JSON.

The terminal and the page say the same, from the same functions.
"""

from rich.table import Table

from ...sched.bubble_filling.choose import Chosen, PlanScan
from ...sched.bubble_filling.timeline import bubble_causes
from ...sched.render.summary import format_memory
from ..console.reporting import make_table

SHOWN = 8


def chosen_report(chosen: Chosen) -> dict[str, object]:
    """Return a plan and its figures, as JSON."""
    plan, need = chosen.plan, chosen.memory
    return {
        "pp_enc": plan.stages,
        "tp_enc": plan.tensor,
        "recompute": plan.recompute,
        "warmup": plan.warmup,
        "longest_piece_us": chosen.splitting.longest_ns / 1e3 if chosen.splitting else None,
        "eff": chosen.filled.efficiency,
        "step_seconds": chosen.filled.step_ns / 1e9,
        "exposed_seconds": [chosen.filled.before_ns / 1e9, chosen.filled.after_ns / 1e9],
        "memory_gb": (need.model + encoder_bytes(chosen)) / 1e9,
        "encoder_copies": need.copies,
    }


def encoder_bytes(chosen: Chosen) -> int:
    """Return what the encoders hold on a GPU: model states and all activations at once."""
    held = max(len(p.microbatches) for p in chosen.filled.pipelines)
    return chosen.memory.states + held * chosen.memory.per_microbatch


def scan_report(found: PlanScan) -> dict[str, object]:
    """Return the plans and the language model's step, as JSON."""
    best = found.best
    return {
        "best": chosen_report(best),
        "llm_only_seconds": _alone_ns(best) / 1e9,
        "encoder_collective_seconds": (best.host.gaps.step_ns - _alone_ns(best)) / 1e9,
        "note": best.filled.note,
        "plans": [chosen_report(one) for one in found.chosen],
        "refused": {str(plan): why for plan, why in found.refused},
        "skipped": found.skipped,
    }


def _alone_ns(best: Chosen) -> int:
    """Return the language model's own step, without the encoders' collectives beside it."""
    return best.host.gaps.step_ns - best.host.encoder_ns


def summary(best: Chosen) -> list[str]:
    """Return what the terminal and the page both say: where the step's time is, and the memory."""
    step = best.host.gaps.step_ns
    shares = _mean_shares(best)
    kinds = {
        "for data-parallel collectives": shares["gather_ns"] + shares["scatter_ns"],
        "between passes": shares["warmup_ns"] + shares["steady_ns"] + shares["cooldown_ns"],
        "in tensor-parallel collectives inside passes": shares["tensor_ns"],
    }
    parts = ", ".join(f"{share:.1%} {words}" for words, share in kinds.items())
    beside = best.host.encoder_ns
    own = f", of which the encoders' collectives are {beside / 1e9:.3f} s" if beside else ""
    timeline = best.host.timeline
    need = best.memory
    return [
        f"The language model's GPUs do not compute for {sum(kinds.values()):.1%} of its step of "
        f"{step / 1e9:.3f} s{own}: {parts} (what pages call bubble is {timeline.bubble_ratio:.1%}, "
        "the part between passes).",
        f"Memory: {format_memory(need.model)} without encoders, "
        f"{format_memory(need.model + encoder_bytes(best))} with them; their copies add "
        f"{need.copies:.1%} of the model states.",
    ]


def _mean_shares(best: Chosen) -> dict[str, float]:
    """Return the mean share of the step by cause."""
    rows = bubble_causes(best.host.gaps, best.host.timeline)
    whole = best.host.gaps.step_ns * len(rows)
    return {cause: sum(row[cause] for row in rows) / whole for cause in rows[0]}


def bubble_table(best: Chosen) -> Table:
    """Return each rank's time without computation by cause, and the mean share of the step."""
    title = f"Bubbles of the language model's step, {best.host.gaps.step_ns / 1e9:.3f} s (ms)"
    causes = ("all-gather", "warm-up", "steady", "tensor", "cool-down", "reduce-scatter")
    table = make_table(title, "rank", *causes)
    for rank, one in enumerate(bubble_causes(best.host.gaps, best.host.timeline)):
        table.add_row(str(rank), *(f"{ns / 1e6:.0f}" for ns in one.values()))
    shares = _mean_shares(best).values()
    table.add_row("mean", *(f"{share:.1%}" for share in shares), style="bold")
    return table


def plan_table(found: PlanScan) -> Table:
    """Return the best plans, a line each."""
    columns = ("again", "warm-up", "pieces", "hidden", "step", "memory", "copies")
    table = make_table("Encoder plans, shortest step first", "PP, TP", *columns)
    for one in found.chosen[:SHOWN]:
        plan = one.plan
        cut = f"{one.splitting.longest_ns / 1e3:.0f} us" if one.splitting else "whole"
        table.add_row(
            f"{plan.stages}, {plan.tensor}",
            "yes" if plan.recompute else "no",
            plan.warmup,
            cut,
            f"{one.filled.efficiency:.1%}",
            f"{one.filled.step_ns / 1e9:.3f} s",
            format_memory(one.memory.model + encoder_bytes(one)),
            f"{one.memory.copies:.0%}",
        )
    notes = [f"{found.skipped} more plans could not be better"] if found.skipped else []
    notes += [f"{len(found.refused)} do not fit, or copy too much"] if found.refused else []
    table.caption = "; ".join(notes)
    return table
