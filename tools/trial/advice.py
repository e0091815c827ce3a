"""Says what a trial's figures mean: one sentence, what would be better, and the lines to paste.

Pure: figures in, words out. What is not better is not called better: differences within the range
of the rounds are none, a gain below LEAST_GAIN is none, and what a step gains by balance counts
only as far as the step does not wait for data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...loader.auto.forecast import Outlook
from .subject import Subject

LEAST_GAIN = 0.03
FREE_LOOP = (
    "# your loop: for batch, info in loader.with_info(): cp.scale_loss(loss_sum, info).backward()"
)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it is foretold: milliseconds, and the shares of it in which ranks wait.

    ranks: for each other. data: for their workers.
    """

    ms: float
    ranks: float
    data: float


def foretell_step(compute_ms: float, waiting: float, samples: int, rate: float) -> Step:
    """Return the step of a rank that computes so long, with samples that come at a rate a second.

    >>> foretell_step(250, 0.2, samples=8, rate=16)
    Step(ms=500.0, ranks=0.1, data=0.5)
    """
    ms = max(compute_ms, 1e3 * samples / rate)
    return Step(ms, waiting * compute_ms / ms, 1 - compute_ms / ms)


@dataclass(frozen=True, slots=True)
class Better:
    """Something to change, as words or code, and why. time: the step over random order's."""

    change: str
    why: str
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """All that advice follows from.

    steps: the steps foretold, by contender: "torch", "ours", "auto" (first epoch), "later" (auto
    where costs are known). apart: how each contender's speed differs from torch's. others:
    forecasts of other plans by the code of their Balance.
    """

    subject: Subject
    accumulate: int
    step_ms: float
    steps: Mapping[str, Step]
    apart: Mapping[str, str]
    outlook: Outlook | None
    others: Mapping[str, Outlook]
    varies: bool
    costs_said: str
    loads: bool
    failed: Mapping[str, str]
    broken: int
    needed_rate: float
    rates: Mapping[str, float]
    cores: int

    @property
    def best(self) -> str:
        """The contender that says what balance gives once the first epoch is over."""
        return "later" if "later" in self.steps else "auto"

    def gain(self, name: str) -> float:
        """Return which share of torch's step a contender saves."""
        if name not in self.steps or "torch" not in self.steps:
            return 0.0
        return 1 - self.steps[name].ms / self.steps["torch"].ms


def advise(case: Case) -> tuple[str, list[Better], list[str]]:
    """Return the sentence, what would be better, and the lines to paste, the loader's last."""
    said, options = _verdict(case)
    found = _better(case, options)
    more = [*options]
    if case.broken:
        more.append('on_error="skip"')
    if not (options or case.broken) and case.apart.get("ours") != "faster":
        lines = ["# nothing to change: your DataLoader does as well"]
        return said, found, lines
    workers = _enough_workers(case) if _is_bound(case) else None
    changed = {"num_workers": workers} if workers else {}
    lines = ["import counterpoise as cp", *case.subject.setup]
    if any("free" in option for option in options):
        lines.append(FREE_LOOP)
    return said, found, [*lines, case.subject.line(*more, **changed)]


def _verdict(case: Case) -> tuple[str, list[str]]:
    """Return the sentence, and arguments of the loader that it recommends."""
    if "torch" in case.failed and "ours" in case.failed:
        return f"No loader can read it: {case.failed['ours']}.", []
    if case.subject.is_stream:
        return f"A stream's samples come as they come: no step is planned. {_speed(case)}", []
    if not case.varies:
        return f"Balance cannot gain: {case.costs_said}. {_speed(case)}", []
    if "auto" in case.failed:
        return f'balance="auto" cannot run: {case.failed["auto"]}.', []
    gain, outlook = case.gain(case.best), case.outlook
    if gain >= LEAST_GAIN:
        now, then = case.steps["torch"].ms, case.steps[case.best].ms
        said = f"{100 * gain:.0f} % shorter: {now:.0f} ms now, {then:.0f} ms then (forecast)."
        code = 'balance="auto"' if case.accumulate == 1 else _auto(case.accumulate)
        return f'balance="auto" makes a step {said}', [code]
    code, free = next(((c, o) for c, o in case.others.items() if "free" in c), ("", None))
    times = [each.time for each in (outlook, free) if each is not None]
    could_gain = min(times, default=1.0) <= 1 - LEAST_GAIN
    if could_gain and any(_is_bound(case, name) for name in ("torch", case.best)):
        return (
            f"Loading is the limit: a step needs {case.needed_rate:,.0f} samples/s, and torch's "
            f'loader gives {case.rates["torch"]:,.0f}, balance="auto" '
            f"{case.rates[case.best]:,.0f}. Until there are more, balance gains nothing."
        ), []
    if free is not None and could_gain:
        return (
            f"With {case.subject.batch_size} samples in every microbatch balance gains less than "
            f"3 %. With counts that differ, a step is {100 * (1 - free.time):.0f} % shorter "
            "(forecast)."
        ), [f"balance={code}"]
    return f"Balance would gain less than 3 %: leave it off. {_speed(case)}", []


def _speed(case: Case) -> str:
    """Return in a sentence what our loader alone does."""
    if (failed := case.failed.get("torch")) and "ours" not in case.failed:
        return f"torch's DataLoader cannot read it ({failed}), ours does."
    words = case.apart.get("ours", "no difference")
    if words == "no difference":
        return "Our loader delivers as many samples a second as torch's."
    return f"Our loader alone is {words} than torch's."


def _auto(accumulate: int) -> str:
    return f'balance=cp.Balance("auto", accumulate={accumulate})'


def _is_bound(case: Case, name: str = "torch") -> bool:
    """Return whether the step waits for data under a contender."""
    return name in case.steps and case.steps[name].data > LEAST_GAIN


def _enough_workers(case: Case) -> int | None:
    """Return the workers that deliver what a step needs; None where cores cannot, or unknown."""
    rate = max(case.rates.get("torch", 0.0), case.rates.get("ours", 0.0))
    if not rate:
        return None
    return math.ceil(1.1 * max(1, case.subject.workers) * case.needed_rate / rate)


def _better(case: Case, options: Sequence[str]) -> list[Better]:
    found = []
    if _is_bound(case) and (count := _enough_workers(case)):
        enough = count <= case.cores
        found.append(
            Better(
                f"num_workers={count}",
                f"for {case.needed_rate:,.0f} samples/s"
                + ("" if enough else f"; this machine has {case.cores} cores"),
            )
        )
    if case.loads and options:
        slower = case.apart.get("auto") == "slower"
        why = "only loading shows what a sample costs"
        why += (
            ", so that the first epoch loads each twice, at less speed"
            if slower
            else (", so that the first epoch loads each twice")
        )
        found.append(Better('a length column, cost={"tokens": lengths}, or probe(index)', why))
    outlook = case.outlook
    if outlook is None:
        return found
    for code, other in case.others.items():
        if other.time <= outlook.time - LEAST_GAIN:
            found.append(Better(code, _why(code), other.time))
    return found


def _why(code: str) -> str:
    if "free" in code:
        return "microbatches of unequal counts; weigh losses by cp.scale_loss(loss_sum, info)"
    if "packed" in code:
        return "no padding; the model must take packed sequences"
    return "only if your loop accumulates so many microbatches"
