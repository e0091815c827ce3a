"""Explains files of a run: a ledger, a step of it, and the dead letters of samples given up."""

import json
import re
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...balancer.planning.problem.config import PLANNER_VERSION
from ...loader.resume.balanced_position import is_inside
from ...loader.resume.ledger import (
    LEDGER_VERSION,
    WRITERS,
    BalancedLedger,
    Ledger,
    PlannedLedger,
    check_same_data,
    parse_ledger,
)
from ...workers.mixture.order import epoch_order, epoch_samples, find_rows
from ...workers.sources.data_identity import KnownData
from ...workers.sources.dead_letters import read_letters
from ...workers.sources.failures import SkippedSample
from ...workers.sources.plain import as_source
from ..analyze.scan.sources import find_dataset
from ..inputs.files import parse_text
from .figures import Finding, judge
from .job import Examination

# Fields that only a ledger has; the older format has no kind.
LEDGER_FIELDS = ("kind", "window_step")
# Fields that say how far an epoch has come: in this process, or on all ranks.
PLACE = ("epoch", "step", "microbatch", "served", "batches", "given")


def examine_ledger(path: Path) -> list[Finding]:
    """Explain the ledger in a JSON file; OSError without a file, ValueError without a ledger."""
    ledger = parse_text(path, _parsed)
    planner = ledger.planner if isinstance(ledger, PlannedLedger) else PLANNER_VERSION
    facts = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
    left_out = facts.get("left_out", 0)
    place = [f"{name} {facts[name]}" for name in PLACE if name in facts]
    # Inside a step every rank has had some microbatches, a few ranks (served) perhaps one more.
    is_begun = isinstance(ledger, BalancedLedger) and is_inside(ledger)
    needs = f"; it goes on with {facts['ranks']} ranks only" if is_begun else ""
    return [
        judge(
            "ledger",
            f"version {LEDGER_VERSION} of {WRITERS[ledger.kind]}, planner {planner}",
            warn=planner != PLANNER_VERSION
            and f"this counterpoise has planner {PLANNER_VERSION}: resume with the version that "
            "wrote the ledger",
        ),
        judge("position", ", ".join(place) + needs),
        judge(
            "holes",
            f"{left_out} samples of this epoch were left out so far",
            warn=left_out and "list them with counterpoise doctor --dead-letter FILE",
        ),
    ]


def _parsed(text: str) -> Ledger:
    try:
        state = _find(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"not JSON that can hold a ledger ({error}); give a file with what "
            "json.dump(loader.state_dict(), file) writes"
        ) from None
    if state is None:
        raise ValueError("this JSON holds no ledger; give one that loader.state_dict() returned")
    return parse_ledger(state)


def _find(content: Any) -> Any:
    """Return the first ledger in a JSON value (it may be a whole checkpoint), None without one."""
    if not isinstance(content, dict):
        return None
    if any(name in content for name in LEDGER_FIELDS):
        return content
    states = (_find(part) for part in content.values())
    return next((state for state in states if state is not None), None)


NAMED_KEYS = 3
# Parts that differ between samples with the same problem: numbers, quoted names, paths.
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|/[^\s:,]+|0x[0-9a-f]+|\d+")


def examine_dead_letters(path: Path) -> list[Finding]:
    """Return a finding for each group of letters, the largest first.

    Raises ValueError if the file is missing or is not a dead-letter file.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the file of OnError(dead_letter=...)")
    letters = read_letters(path)
    if not letters and path.stat().st_size:
        raise ValueError(f"{path} is not a dead-letter file: no line of it is a letter")
    if not letters:
        return [judge("dead letters", "none")]
    groups: dict[tuple[str, str, str], list[SkippedSample]] = defaultdict(list)
    for letter in letters:
        groups[letter.source, letter.kind, generalize(letter.reason)].append(letter)
    largest = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [_finding(source, group) for (source, _, _), group in largest]


def generalize(reason: str) -> str:
    """Return a reason without the parts that differ from sample to sample.

    >>> generalize("image 3 of 'a.tar' has 70000 pixels")
    'image # of # has # pixels'
    """
    return _DETAIL.sub("#", reason)


def _finding(source: str, group: list[SkippedSample]) -> Finding:
    keys = list(dict.fromkeys(letter.key for letter in group))
    named = ", ".join(keys[:NAMED_KEYS]) + (", ..." if len(keys) > NAMED_KEYS else "")
    first = group[0]
    name = f"{source or 'unnamed source'} ({first.kind})"
    summary = f"{len(keys)} samples ({named}), {len(group)} letters: {first.reason}"
    advice = "repair or remove these samples" if first.kind == "data" else "check the storage"
    return judge(name, summary, warn=advice)


def examine_step(path: Path, step: int, data: str) -> Examination:
    """Return the keys of a step of the epoch in which a ledger was saved; ValueError without.

    data: package.module:name of the data set, a mixture's recipe, or a pattern of files.
    """
    ledger = parse_text(path, _parsed)
    if not isinstance(ledger, BalancedLedger):
        raise ValueError("--step needs a ledger of a DataLoader with balance, which counts steps")
    if ledger.mode != "exact":
        raise ValueError(
            f"the plan's mode is {ledger.mode!r}, which moves samples between steps by what they "
            "cost: log StepInfo.keys in the loop; with mode 'exact' a ledger says which they are"
        )
    dataset: Any = find_rows(find_dataset(data))
    source = as_source(dataset)
    count = epoch_samples(source, ledger.shuffle)
    check_same_data(ledger, KnownData(dataset, count, source.key).look_at_samples())
    begin = step * ledger.samples_per_step
    if not 0 <= begin < count:
        steps = -(-count // ledger.samples_per_step)
        raise ValueError(f"step is {step}, and the epoch has {steps}, counted from 0")
    order = epoch_order(source, ledger.seed or 0, ledger.epoch, ledger.shuffle)
    keys = [str(source.key(index)) for index in order[begin : begin + ledger.samples_per_step]]
    finding = judge(f"step {step} of epoch {ledger.epoch}", f"{len(keys)} samples")
    return Examination([finding, judge("keys", ", ".join(keys))], keys=tuple(keys))
