"""What a setting delivers by the local loop, and by a coordinator in this process."""

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.loader import DataLoader
from counterpoise.loader.assembly import BalancedSettings
from counterpoise.loader.balanced.fetching import MicrobatchSource
from counterpoise.loader.connect.in_process import InProcessConnection
from counterpoise.loader.step.ranks import Place
from tests.loader import balanced_data as made
from tests.loader.local.settings import Setting

# What came, in order: batches with what was said of them, or an error.
Delivered = list[Any]
LONGEST = 2000


def by_coordinator(
    settings: BalancedSettings, job: JobSpec, place: Place
) -> Callable[[], MicrobatchSource]:
    """Return what makes the connection to a coordinator in this process: see BalancedSettings."""
    assert settings.source is not None
    return partial(InProcessConnection, job, settings.source, place.played)


def deliver(setting: Setting, workers: int = 0) -> Delivered:
    """Return what a loader delivers, and then another one that resumes it somewhere."""
    found: Delivered = []
    with tempfile.TemporaryDirectory() as folder:
        letters = Path(folder) / "letters"
        given: dict[str, Any] = {"num_workers": workers}
        if setting.loader["on_error"] == "skip":
            given["dead_letter"] = str(letters)
        loader = setting.make(**given)
        whole = partial(itertools.islice, _taken(loader, setting), LONGEST)
        ledgers = [_ledger(loader)]
        for each in whole():
            found.append(each)
            if isinstance(each, tuple):
                ledgers.append(each[-1])
        loader.close()
        found.append(("letters", _read(letters)))
        found.append("resumed")
        other = setting.second().make(**given)
        try:
            other.load_state_dict(json.loads(ledgers[setting.stop % len(ledgers)]))
            found.extend(itertools.islice(_taken(other, setting), LONGEST))
        except ValueError as error:
            found.append(f"refused: {error}")
        other.close()
    return found


def _taken(loader: DataLoader, setting: Setting) -> Iterator[Any]:
    """Yield what comes until some epochs are over, and what ends it."""
    try:
        for _ in range(setting.epochs):
            for batch, info in _pairs(loader, setting.in_steps):
                said = {
                    each.name: getattr(info, each.name)
                    for each in fields(info)
                    if each.name != "after"
                }
                said["costs"] = dict(said["costs"])
                yield said, made.digest(batch), _ledger(loader)
            yield f"left out: {loader.left_out}"
    except Exception as error:
        yield f"{type(error).__name__}: {error}"


def _pairs(loader: DataLoader, in_steps: bool) -> Iterator[tuple[Any, Any]]:
    if not in_steps:
        yield from loader.with_info()
        return
    for step in loader.steps():
        yield from zip(step.microbatches, step.infos, strict=True)


def _ledger(loader: DataLoader) -> str:
    return json.dumps(loader.state_dict())


def _read(letters: Path) -> list[Any]:
    lines = letters.read_text().splitlines() if letters.exists() else []
    return sorted(lines)
