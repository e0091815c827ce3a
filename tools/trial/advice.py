"""Says what a trial's figures mean: one sentence, what would be better, and the lines to paste.

Pure: a report in, words out. What is not better is not called better: differences within the range
of the rounds are none, a gain below LEAST_GAIN is none, and what a step gains by balance counts
only as far as the step does not wait for data.
"""

import math
from collections.abc import Callable
from typing import Any

from .turns import SAME

Json = dict[str, Any]
LEAST_GAIN = 0.03
FREE_LOOP = (
    "# your loop: for batch, info in loader.with_info(): cp.scale_loss(loss_sum, info{}).backward()"
)
WHY = {
    "free": "microbatches of unequal counts; weigh losses by cp.scale_loss(loss_sum, info)",
    "packed": "no padding; the model must take packed sequences",
    "accumulate=4": "only if your loop accumulates so many microbatches",
}


def foretell_step(compute_ms: float, waiting: float, samples: int, rate: float) -> dict[str, float]:
    """Return a rank's step in ms, and the shares of it that it waits for other ranks and for data.

    compute_ms, waiting: the step, and the ranks' waiting, with all data there; samples: of a rank,
    which come at `rate` a second.

    >>> foretell_step(250, 0.2, samples=8, rate=16)
    {'ms': 500.0, 'ranks': 0.1, 'data': 0.5}
    """
    ms = max(compute_ms, 1e3 * samples / rate)
    return {"ms": ms, "ranks": waiting * compute_ms / ms, "data": 1 - compute_ms / ms}


def advise(report: Json, setup: tuple[str, ...], line: Callable[..., str]) -> Json:
    """Return the sentence, what would be better, and the lines to paste, the loader's last.

    report: as in docs/guides/try.md, without these; line: makes the line of the loader.
    """
    verdict, options = _verdict(report)
    workers = _enough_workers(report)
    better = [] if workers is None else [_row(f"num_workers={workers}", _cores(report, workers))]
    if report["is_stream"]:
        why = "packs of a stream's samples, if the model takes packed sequences"
        better.append(_row('balance=cp.Balance(budgets={"tokens": 4096}, layout="packed")', why))
    if options and report["costs"]["only_loading_shows"]:
        why = "else the first epoch loads each sample twice, at about half the speed"
        better.append(_row('a length column, cost={"tokens": lengths}, or probe(index)', why))
    time = report["forecast"]["time"] if report["forecast"] else 1.0
    for code, plan_time in report["other_plans"].items():
        if plan_time <= min(1.0, time) - LEAST_GAIN:
            better.append(_row(code, next(WHY[key] for key in WHY if key in code), plan_time))
    if report["broken"]["count"]:
        options = [*options, 'on_error="skip"']
    says = report["against_torch"].get("ours", {}).get("says")
    is_faster = says == "faster"
    is_faster |= bool(report["systems"]["torch"]["failed"])
    more = {} if workers is None else {"num_workers": workers}
    lines = ["import counterpoise as cp", *setup, line(*options, **more)]
    if any("free" in option for option in options):
        by = "" if report["costs"]["labels"] else ', per="sample"'  # tokens could not be counted
        lines.insert(-1, FREE_LOOP.format(by))
    if not (options or is_faster):
        why = f"your DataLoader {'is faster' if says == 'slower' else 'does as well'}"
        if report["systems"].get("auto", {}).get("failed"):
            why = 'balance="auto" cannot run as it is'
        does = (
            f"in your DataLoader: num_workers={workers}" if workers else f"nothing to paste: {why}"
        )
        lines = [f"# {does}"]
    return {"verdict": verdict, "better": better, "paste": lines}


def _verdict(report: Json) -> tuple[str, list[str]]:
    """Return the sentence, and the arguments of the loader that it recommends."""
    if reason := _explain_unknown(report):
        return reason, []
    steps, forecast = report["steps"], report["forecast"]
    size, accumulate, waits = map(report["settings"].get, ("batch_size", "accumulate", "waits"))
    now, then = steps["torch"]["ms"], steps["auto"]["ms"]
    free = next(code for code in report["other_plans"] if "free" in code)
    time = report["other_plans"][free]
    is_limit = max(steps["torch"]["data"], steps["auto"]["data"]) > LEAST_GAIN
    gain = 1 - then / now
    # Of what the table shows the best is advised: free counts also keep the mean over tokens.
    if gain >= LEAST_GAIN and (is_limit or time > forecast["time"] - LEAST_GAIN):
        gain_text = f"{100 * gain:.0f} % shorter: {now:.0f} ms now, {then:.0f} ms then (forecast)."
        options = [f"accumulate={accumulate}"] * (accumulate > 1)
        options += [f'waits="{waits}"'] if waits else []
        options += ['layout=cp.Layout("torch", shift_labels=False)'] * report["costs"].get(
            "labels_shifted", False
        )
        more = f'cp.Balance("auto", {", ".join(options)})' if options else '"auto"'
        return f'balance="auto" makes a step {gain_text}', [f"balance={more}"]
    if min(forecast["time"], time) > 1 - LEAST_GAIN:
        return f"Balance would gain less than 3 %: leave it off. {_speed(report)}", []
    if is_limit:
        rates = report["rates"]
        return (
            f"Loading is the limit: a step needs {report['needed_samples_per_s']:,.0f} samples/s; "
            f'torch\'s loader gives {rates["torch"]:,.0f}, balance="auto" {rates["auto"]:,.0f}. '
            "Until there are more, balance gains nothing."
        ), []
    gains = f"{100 * gain:.0f} %" if gain >= LEAST_GAIN else "less than 3 %"
    return (
        f"With {size} samples in every microbatch balance gains {gains}. With counts that "
        f"differ, a step is {100 * (1 - time):.0f} % shorter (forecast)."
    ), [f"balance={free}"]


def _explain_unknown(report: Json) -> str:
    """Return why there are no steps with and without balance to compare; "" if there are."""
    costs = report["costs"]
    errors = {name: system["failed"] for name, system in report["systems"].items()}
    failed = {name: error for name, error in errors.items() if error}
    if {"torch", "ours"} <= set(failed):
        return f"No loader can read it: {failed['ours']}."
    if report["is_stream"]:
        return f"A stream's samples come as they come: no step is planned. {_speed(report)}"
    if not costs["recognised"]:
        return (
            f"A step cannot be foretold: {costs['work']}. If you know how a batch's cost follows "
            f'from its samples, say it by costs and Balance("auto", work=...). {_speed(report)}'
        )
    if not costs["vary"]:
        return f"Balance cannot gain: {costs['found']}. {_speed(report)}"
    if "torch" in failed:
        return f"torch's DataLoader cannot run: {failed['torch']}"
    if "auto" in failed:
        gain = 100 * (1 - report["forecast"]["time"])
        return f'balance="auto" cannot run as it is; a step would be {gain:.0f} % shorter.'
    return ""


def _speed(report: Json) -> str:
    """Return in a sentence what our loader alone does."""
    if report["systems"]["torch"]["failed"]:
        return "torch's DataLoader cannot read it, ours does."
    words = report["against_torch"].get("ours", {}).get("says", SAME)
    if words == SAME:
        return "Our loader is as fast as torch's."
    return f"Our loader alone is {words} than torch's."


def _row(change: str, why: str, time: float | None = None) -> Json:
    return {"change": change, "why": why, "time": time}


def _enough_workers(report: Json) -> int | None:
    """Return the workers that deliver what a step needs; None where there are enough, or none."""
    step, rates = report["steps"].get("torch"), report["rates"]
    if step is None or step["data"] <= LEAST_GAIN:
        return None
    rate = max(rates["torch"], rates.get("ours", 0.0))
    workers = max(1, report["settings"]["workers"])
    enough = math.ceil(workers * report["needed_samples_per_s"] / rate)
    return enough if enough > report["settings"]["workers"] else None


def _cores(report: Json, workers: int) -> str:
    cores = report["settings"]["cores"]
    more = f"; this machine has {cores} cores" if workers > cores else ""
    return f"for the {report['needed_samples_per_s']:,.0f} samples/s that a step needs{more}"
