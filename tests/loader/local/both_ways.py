"""What a setting delivers by the local loop, and by a balancer in this process."""

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from counterpoise.loader import DataLoader
from counterpoise.loader.balanced.settings import LoopSettings
from counterpoise.loader.balanced.source import MicrobatchSource
from counterpoise.loader.remote.batch_reader import BatchReader
from tests.loader import balanced_data as made
from tests.loader.local.balancer_here import PlayedHere
from tests.loader.local.settings import Setting

# More microbatches than any setting has.
LONGEST = 5000
TOO_SMALL = "raise buffer_bytes to at least"
# What ends a run: a sample, where nothing is left out, or a step that cannot be planned. It ends a
# balancer's as soon as it is known, and a local one when all ahead of it is handed out.
ENDS = re.compile("sample '|do not fit the budgets|label tokens, and their labels have")


@dataclass(frozen=True)
class Run:
    """What a loader delivers: (info, digest, ledger) of each microbatch, then what ended it.

    letters: of the dead-letter file.
    """

    microbatches: list[tuple[dict[str, Any], str, str]]
    end: str
    letters: list[dict[str, Any]]


def by_balancer(settings: LoopSettings) -> Callable[[], MicrobatchSource]:
    """Return what makes the connection to a balancer in this process: see loader/assembly.py."""
    local = settings.local
    assert local.source is not None
    reader = BatchReader(settings.job, local.batches, local.takes_empty)
    return partial(PlayedHere, local.source, settings.place, reader)


def deliver(setting: Setting, **processes: Any) -> tuple[Run, Run]:
    """Return what a loader delivers, and what another one does that resumes it somewhere.

    processes: the loader's arguments that say how its work is done; by default here.
    """
    first = _run(setting, processes, None)
    # Where an error ends it, how far it came is not the same for all.
    ledgers = [] if ENDS.search(first.end) else [each[-1] for each in first.microbatches]
    resumed = ledgers[setting.stop % len(ledgers)] if ledgers else None
    return first, _run(setting.second(), processes, resumed)


def difference(found: Run, expected: Run) -> str:
    """Return in what two runs differ, "" for nothing."""
    both = zip(found.microbatches, expected.microbatches, strict=False)
    for place, (ours, theirs) in enumerate(both):
        if ours != theirs:
            names = [name for name in ours[0] if ours[0][name] != theirs[0][name]]
            what = [f"{name}: {ours[0][name]} != {theirs[0][name]}" for name in names]
            what += [f"batch {ours[1]} != {theirs[1]}"] * (ours[1] != theirs[1])
            what += [f"ledger {ours[2]} != {theirs[2]}"] * (ours[2] != theirs[2])
            return f"microbatch {place}: {'; '.join(what)}"
    if TOO_SMALL in found.end:
        return ""
    came, wanted = len(found.microbatches), len(expected.microbatches)
    if ENDS.search(found.end) and ENDS.search(expected.end):
        return f"{came} microbatches, not {wanted}" if came < wanted else ""
    if came != wanted:
        return f"{came} microbatches, not {wanted}: {found.end}, not {expected.end}"
    if found.end != expected.end:
        return f"{found.end}, not {expected.end}"
    if found.letters != expected.letters:
        return f"letters {found.letters} != {expected.letters}"
    return ""


def _run(setting: Setting, processes: dict[str, Any], ledger: str | None) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        letters = Path(folder) / "letters"
        given = dict(processes)
        if setting.loader["on_error"] == "skip":
            given["dead_letter"] = str(letters)
        loader, taken = setting.make(**given), list[Any]()
        try:
            if ledger is not None:
                loader.load_state_dict(json.loads(ledger))
            end = ""
            for epoch in range(setting.epochs):
                taken.extend(itertools.islice(_taken(loader, setting), LONGEST))
                end += f"epoch {epoch} leaves out {loader.left_out}; "
        except Exception as error:
            end = f"{type(error).__name__}: {error}"
        finally:
            loader.close()
        lines = letters.read_text().splitlines() if letters.exists() else []
        found = sorted((_named(json.loads(line)) for line in lines), key=str)
        return Run(taken, _same_names(end.replace(folder, "")), found)


def _taken(loader: DataLoader, setting: Setting) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield what comes in an epoch."""
    for batch, info in _pairs(loader, setting.in_steps):
        said = {each.name: getattr(info, each.name) for each in fields(info)}
        said |= {"costs": dict(info.costs), "holes": [_same_names(f"'{n}'") for n in info.holes]}
        del said["after"]
        yield said, made.digest(batch), json.dumps(loader.state_dict())


def _pairs(loader: DataLoader, in_steps: bool) -> Iterator[tuple[Any, Any]]:
    if not in_steps:
        yield from loader.with_info()
        return
    for step in loader.steps():
        yield from zip(step.microbatches, step.infos, strict=True)


def _named(letter: dict[str, Any]) -> dict[str, Any]:
    return {**letter, "key": _same_names(f"'{letter['key']}'")}


def _same_names(text: str) -> str:
    """Return a text in which samples that were not loaded are named by their index.

    A sample that raises says its own name; a balancer knows of some only their index.
    """
    return re.sub(r"'k0*(\d+)'", r"'\1'", text)
