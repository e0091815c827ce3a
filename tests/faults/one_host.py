"""Kills processes of loaders on one host, whose batches lie in shared memory; finds what is left.

Each party of a balanced loop (trainer, template, worker) and of a plain one (trainer,
worker) is killed again and again, at moments drawn from a seed. A trainer that is not the victim
checks its batches and what it still has; here is looked for what outlives it.
"""

import json
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.forking.popen import MARK

from . import leftovers
from .child_process import ChildProcess
from .killing_trainer import PARTIES

# Seconds that a trainer may take to its start, and for each kill.
START_S, KILL_S = 60.0, 30.0


@dataclass(slots=True)
class Kills:
    """What was killed, how often; batches that were wrong, and what was left behind."""

    kills: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def report(self) -> dict[str, object]:
        """Return the figures."""
        counts = {"wrong": len(self.wrong), "leftovers": len(self.left)}
        notes = [*self.wrong, *self.left]
        return {"kills": self.kills, **counts, "notes": notes, "seconds": round(self.seconds, 1)}


def kill_parties(
    kills: int,
    seed: int,
    log: Callable[[str], None] = lambda _: None,
    parties: Sequence[str] = PARTIES,
) -> Kills:
    """Kill each of the parties `kills` times; `log` is called with each error."""
    found, started = Kills(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="counterpoise-kills-") as place:
        run = _Run(Path(place), found, log)
        for party in parties:
            log(f"{party}: {kills} kills")
            run.kill(party, kills, seed)
    found.seconds = time.monotonic() - started
    return found


class _Run:
    """Trainers, and what is found out about them."""

    def __init__(self, folder: Path, found: Kills, log: Callable[[str], None]) -> None:
        self.folder = folder
        self.temporary = folder / "t"
        self.temporary.mkdir()
        self.found = found
        self.log = log
        self.mark = str(uuid.uuid4())
        self.shm = leftovers.segments()

    def kill(self, party: str, kills: int, seed: int) -> None:
        """Kill a party: a trainer dies at each kill, all others are killed by one trainer."""
        dies = party.endswith("trainer")
        for number in range(kills if dies else 1):
            self._train(party, seed + number, 1 if dies else kills)
        self.found.kills[party] = kills

    def _train(self, party: str, seed: int, kills: int) -> None:
        notes, log = self.folder / "notes", self.folder / "log"
        for path in (notes, log):
            path.unlink(missing_ok=True)
        words = ["tests.faults.killing_trainer", party, str(seed), str(kills), str(notes)]
        trainer = ChildProcess(words, log, self.temporary, self.mark)
        ended = trainer.ended(START_S + kills * KILL_S)
        if not ended:
            trainer.kill(START_S)
        self._add(f"{party}, seed {seed}", ended, notes, log)
        inodes = json.loads(notes.read_text())["memory"] if notes.exists() else []
        left = leftovers.settled(lambda: self._left(set(inodes)))
        self.found.left += [f"{party}, seed {seed}: {each}" for each in left]
        for each in left:
            self.log(each)

    def _add(self, who: str, ended: bool, notes: Path, log: Path) -> None:
        """Add what a trainer has noted, or that it has not."""
        if not ended:
            wrong = ["has not ended"]
        elif not notes.exists():
            wrong = [f"ended before it was killed: {log.read_text(errors='replace')[-1000:]}"]
        else:
            wrong = json.loads(notes.read_text())["wrong"]
        for each in wrong:
            self.log(f"{who}: {each}")
        self.found.wrong += [f"{who}: {each}" for each in wrong]

    def _left(self, inodes: set[int]) -> list[str]:
        return [
            *leftovers.processes(f"{MARK}={self.mark}"),
            *leftovers.unix_sockets(self.temporary),
            *leftovers.temporary_files(self.temporary),
            *leftovers.shared_memory(self.shm),
            *leftovers.memory_files(inodes),
        ]
