"""What a ledger says, in words."""

import json
from pathlib import Path
from typing import Any

from ...balancer.planning.problem.config import PLANNER_VERSION
from ...loader.resume.ledger import LEDGER_VERSION, Ledger, parse_ledger
from .finding import Finding, judge

NAMED = 10


def examine_ledger(path: Path) -> list[Finding]:
    """Explain the ledger in a JSON file; ValueError if there is none, OSError if no file."""
    ledger = parse_ledger(_find(json.loads(path.read_text())))
    return [_version(ledger), _position(ledger), _holes(ledger), _needs(ledger)]


def _find(content: Any) -> Any:
    """Return the ledger in a JSON value: itself, or the first one inside (a whole checkpoint)."""
    if isinstance(content, dict) and "window_step" in content:
        return content
    inside = content.values() if isinstance(content, dict) else ()
    for each in inside:
        if isinstance(each, dict) and (found := _find(each)) is not None:
            return found
    if isinstance(content, dict) and inside:
        return None
    raise ValueError("this JSON holds no ledger: give what loader.state_dict() returned")


def _version(ledger: Ledger) -> Finding:
    found = f"ledger {ledger.version}, planner {ledger.planner}"
    if (ledger.version, ledger.planner) == (LEDGER_VERSION, PLANNER_VERSION):
        return judge("versions", found)
    mine = f"this counterpoise has {LEDGER_VERSION} and {PLANNER_VERSION}"
    return judge("versions", found, warn=f"{mine}: resume with the one that wrote it")


def _position(ledger: Ledger) -> Finding:
    found = f"epoch {ledger.epoch}: steps before {ledger.step} were handed out whole"
    if ledger.microbatch or ledger.served:
        found += f", and {ledger.microbatch} microbatches of step {ledger.step} to every rank"
    if ledger.served:
        found += f", one more to {ledger.served} of the virtual ranks"
    if ledger.step == 0 and not (ledger.microbatch or ledger.served):
        found = f"epoch {ledger.epoch}, before its first step"
    window = f"its window starts at sample {ledger.start} of the epoch's order"
    return judge("position", f"{found}; {window}")


def _holes(ledger: Ledger) -> Finding:
    if not ledger.holes:
        return judge("holes", "no sample of this epoch was left out so far")
    named = ", ".join(map(str, ledger.holes[:NAMED]))
    more = f" and {len(ledger.holes) - NAMED} more" if len(ledger.holes) > NAMED else ""
    return judge(
        "holes",
        f"{len(ledger.holes)} samples were left out: those at {named}{more} of the epoch's order",
        warn="counterpoise doctor --dead-letter FILE says which and why",
    )


def _needs(ledger: Ledger) -> Finding:
    same = f"seed {ledger.seed}, shuffle {ledger.shuffle}, samples_per_step "
    same += f"{ledger.samples_per_step}, mode {ledger.mode!r}"
    if ledger.microbatch or ledger.served or ledger.step != ledger.window_step:
        found = f"{same}, and the very same plan ({ledger.digest[:12]}) for {ledger.ranks} ranks"
        return judge("to resume", f"{found}; between steps any number of ranks would do")
    return judge("to resume", f"{same}; any number of ranks, workers and hosts")
