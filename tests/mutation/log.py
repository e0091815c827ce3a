"""Keeps verdicts in a file, a line for each, and says how far a run is."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation.operators import Mutant
from tests.mutation.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Log:
    """Where verdicts are kept, and what is written to for who waits: copies have no stderr."""

    kept: Path
    shown: int

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        """Keep a verdict."""
        line = {"name": mutant.name, "module": mutant.module, **asdict(verdict)}
        with self.kept.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.say(f"{verdict.outcome} {mutant.name}")

    def say(self, text: str) -> None:
        """Write a line for who waits."""
        os.write(self.shown, f"{text}\n".encode())
