"""Runs `make mutants`: tries the tests of planning and schedules with a seeded sample of mutants.

Each mutant is one small change of a module; its module's tests are run until one fails. What is
found is kept in a file, a line for each, and a run goes on where the last one stopped. Equivalents,
which no test can notice, are listed in equivalents.py with the reason. The report is one JSON
object; the exit status is 1 if fewer than 90 % of the others were noticed.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutation.equivalents import EQUIVALENTS
from tests.mutation.log import Log
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.planting import preload
from tests.mutation.session import ROOT
from tests.mutation.table import TRIED, Tried
from tests.mutation.trying import try_with

COUNT, LEAST, GOAL = 650, 15, 0.9


@dataclass(frozen=True, slots=True)
class Chosen:
    """A mutant of the sample, and the tests that are run with it."""

    mutant: Mutant
    tried: Tried


@cache
def all_of(module: str) -> list[Mutant]:
    """Return all mutants of a module, `folder/name` below the root."""
    return mutants_of(module, (ROOT / f"{module}.py").read_text())


def sample(count: int, seed: int, least: int = LEAST) -> list[Chosen]:
    """Draw mutants, at least so many of each module that has as many; in the order to be tried.

    Each mutant draws its own place, from the seed and its name: a change of one function leaves the
    others' in the sample, with what is known of them, and the first ones are a sample too.
    """
    chosen: list[tuple[float, Chosen]] = []
    rest: list[tuple[float, Chosen]] = []
    for tried in TRIED:
        for name in tried.modules:
            mutants = all_of(f"{tried.folder}/{name}")
            placed = [(_place(seed, mutant), Chosen(mutant, tried)) for mutant in mutants]
            placed.sort(key=_first)
            chosen += placed[:least]
            rest += placed[least:]
    chosen += sorted(rest, key=_first)[: max(0, count - len(chosen))]
    return [each for _, each in sorted(chosen, key=_first)[:count]]


def _place(seed: int, mutant: Mutant) -> float:
    return random.Random(f"{seed} {mutant.name}").random()


def _first(placed: tuple[float, Chosen]) -> float:
    return placed[0]


def try_all(chosen: list[Chosen], kept: Path) -> list[dict[str, Any]]:
    """Try mutants that are not in the kept file, and add them to it; return all verdicts."""
    done = {line["name"] for line in read(kept)}
    left = [each for each in chosen if each.mutant.name not in done]
    preload(*(["torch"] if any("runtime" in each.tried.folder for each in left) else []))
    settings: dict[tuple[tuple[str, ...], bool], list[Mutant]] = {}
    for each in left:
        setting = each.tried.tests, each.tried.as_python
        settings.setdefault(setting, []).append(each.mutant)
    log = Log(kept, os.dup(2))
    for (tests, as_python), mutants in settings.items():
        try_with(tests, as_python, mutants, log)
    verdicts = {line["name"]: line for line in read(kept)}
    return [verdicts[each.mutant.name] for each in chosen]


def read(kept: Path) -> list[dict[str, Any]]:
    """Return the verdicts in a kept file."""
    return [json.loads(line) for line in kept.read_text().splitlines()]


def report(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the score, of each module too, and the survivors; equivalents do not count."""
    alive = [each for each in verdicts if each["outcome"] == "survived"]
    equivalent = [each["name"] for each in alive if each["name"] in EQUIVALENTS]
    counted = len(verdicts) - len(equivalent)
    survivors = [each["name"] for each in alive if each["name"] not in EQUIVALENTS]
    tried, died = Counter(), Counter()
    for each in verdicts:
        tried[each["module"]] += each["name"] not in equivalent
        died[each["module"]] += each["outcome"] != "survived"
    return {
        "mutants": len(verdicts), "equivalent": len(equivalent), "survived": len(survivors),
        "timeout": sum(each["outcome"] == "timeout" for each in verdicts),
        "score": round(1 - len(survivors) / max(1, counted), 4),
        "score_with_equivalents": round(1 - len(alive) / max(1, len(verdicts)), 4),
        "modules": {name: [died[name], tried[name]] for name in sorted(tried)},
        "survivors": survivors,
    }  # fmt: skip


def main() -> int:
    """Try what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help="try only the first ones of the sample")
    parser.add_argument(
        "--module", action="append", default=[], help="only modules with this in their path"
    )
    parser.add_argument("--kept", type=Path, default=Path("mutants.jsonl"), help="verdicts so far")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    asked = parser.parse_args()
    chosen = sample(asked.count, asked.seed)[: asked.first]
    if asked.module:
        chosen = [x for x in chosen if any(part in x.mutant.module for part in asked.module)]
    asked.kept.touch()
    if asked.again:
        lines = asked.kept.read_text().splitlines()
        asked.kept.write_text("".join(f"{x}\n" for x in lines if '"survived"' not in x))
    found = report(try_all(chosen, asked.kept))
    print(json.dumps(found, indent=1))
    return 0 if found["score"] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
